package bundle_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	opa "github.com/open-policy-agent/opa/v1/bundle"

	"sallyport/internal/bundle"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/rego"
)

// signed is a bundle of a revision that says when it was signed, unless 0.
func (s *server) signed(t *testing.T, revision string, issued int64) []byte {
	t.Helper()
	b := opa.Bundle{Manifest: opa.Manifest{Revision: revision}, Data: map[string]any{"revision": revision}}
	b.Manifest.Init()
	config := opa.NewSigningConfig(s.private, "ES256", "")
	if issued != 0 {
		config.ClaimsPath = filepath.Join(t.TempDir(), "claims.json")
		must.OK(t, os.WriteFile(config.ClaimsPath, fmt.Appendf(nil, `{"iat": %d}`, issued), 0o600))
	}
	must.OK(t, b.GenerateSignature(config, "", false))
	var out bytes.Buffer
	must.OK(t, opa.NewWriter(&out).Write(b))
	return out.Bytes()
}

// repacked is the same in another archive: the signature is over the files.
func repacked(t *testing.T, archive []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(archive))
	must.OK(t, err)
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.NoCompression)
	if _, err := io.Copy(w, z); err != nil {
		t.Fatal(err)
	}
	must.OK(t, w.Close())
	return out.Bytes()
}

// An attacker with the server, or a copy of what it once had, but without the key, does not
// bring an old policy back, however it is packed, whatever restarts meanwhile.
func TestKeeperOfAnOlderBundle(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for _, where := range []string{"url", "file"} {
		t.Run(where, func(t *testing.T) {
			s, dir := newServer(t), filepath.Join(t.TempDir(), "policy")
			from := s.from
			read := none
			if where == "file" {
				from.URL, from.Roots, from.File = "", "", filepath.Join(t.TempDir(), "bundle.tar.gz")
				read = func(from policy.BundleSource) (*policy.Bundle, error) {
					text, err := os.ReadFile(from.File)
					if err != nil {
						return nil, err
					}
					return rego.ReadBundle(text, from)
				}
			}
			k := bundle.Open(dir, log)
			take := func(archive []byte, older bool) error {
				t.Helper()
				from := from
				from.Older = older
				var c *bundle.Candidate
				var err error
				if where == "file" {
					must.OK(t, os.WriteFile(from.File, archive, 0o600))
					c, err = k.Get(t.Context(), from, nil, read)
				} else {
					s.mu.Lock()
					s.archive = archive
					s.mu.Unlock()
					c, err = k.Ask(t.Context(), from, nil)
				}
				if err != nil || c == nil {
					return err
				}
				return k.Accept(c)
			}
			v1, v2, v3, dated, later := s.signed(t, "v1", 0), s.signed(t, "v2", 0), s.signed(t, "v3", 0), s.signed(t, "d1", 1_700_000_000), s.signed(t, "d2", 1_700_000_100)
			for _, step := range []struct {
				what    string
				archive []byte
				older   bool
				want    string
			}{
				{"the first", v1, false, ""},
				{"the next", v2, false, ""},
				{"the first again", v1, false, "was in force already"},
				{"packed otherwise", repacked(t, v1), false, "was in force already"},
				{"the same, packed otherwise", repacked(t, v2), false, ""},
				{"a third", v3, false, ""},
				{"the second again", v2, false, "was in force already"},
				{"as is asked for", v2, true, ""},
				{"what there was in between", v3, false, "was in force already"},
				{"one that says when", later, false, ""},
				{"one that does not", s.signed(t, "v4", 0), false, "does not say when"},
				{"one from before, never seen", dated, false, "older than what was in force"},
				{"the same content, signed again", s.signed(t, "v3", 1_700_000_200), false, ""},
				{"one from before", later, false, "older than what was in force"},
				{"back to it", later, true, ""},
				{"and on", s.signed(t, "d3", 1_700_000_150), false, ""},
			} {
				err := take(step.archive, step.older)
				if step.want == "" && err != nil || step.want != "" && (err == nil || !strings.Contains(err.Error(), step.want) || !errors.Is(err, policy.ErrBundle)) {
					t.Errorf("%s: got %v, want %q", step.what, err, step.want)
				}
				k = bundle.Open(dir, log) // a restart forgets nothing
			}
		})
	}
}
