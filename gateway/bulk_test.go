package gateway_test

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// numberedText is text of which each piece says where it belongs, and of which any
// part could begin a secret, as base64 is. It is read by who sends it; who gets
// it writes to one of the same size, which minds each byte. Neither has more of
// it in memory than a piece.
type numberedText struct {
	size, at int64
	piece    []byte // around at
}

const pieceSize = 64 << 10

// numberedPiece is what pieces are cut from.
var numberedPiece = func() []byte {
	raw := make([]byte, pieceSize/4*3)
	_, _ = mathrand.NewChaCha8([32]byte{}).Read(raw) // never fails
	return []byte(base64.StdEncoding.EncodeToString(raw))
}()

func newNumberedText(size int64) *numberedText {
	return &numberedText{size: size, piece: bytes.Clone(numberedPiece)}
}

// rest is what follows of the piece.
func (r *numberedText) rest() []byte {
	within := r.at % pieceSize
	if within == 0 {
		copy(r.piece, fmt.Sprintf("%016x", r.at/pieceSize))
	}
	return r.piece[within:min(pieceSize, within+r.size-r.at)]
}

func (r *numberedText) Read(p []byte) (int, error) {
	if r.at == r.size {
		return 0, io.EOF
	}
	n := copy(p, r.rest())
	r.at += int64(n)
	return n, nil
}

func (r *numberedText) Write(p []byte) (int, error) {
	for got := p; len(got) > 0; {
		want := r.rest()
		n := min(len(want), len(got))
		if n == 0 {
			return 0, fmt.Errorf("more than %d bytes came", r.size)
		}
		if !bytes.Equal(got[:n], want[:n]) {
			return 0, fmt.Errorf("the bytes from %d to %d came otherwise", r.at, r.at+int64(n))
		}
		r.at += int64(n)
		got = got[n:]
	}
	return len(p), nil
}

// whole says whether all of it came.
func (r *numberedText) whole() error {
	if r.at != r.size {
		return fmt.Errorf("%d bytes came of %d", r.at, r.size)
	}
	return nil
}

// Sizes of bodies, in bytes.
const (
	usualBody = 100_000_000 // at most, that the memory of others is compared with
	largeBody = 128_000_000 // unless SALLYPORT_BODY says how large
)

// bodySlack is how much more memory a large body may take than a usual one, in
// bytes: what the collector lets lie by chance, and far less than either.
const bodySlack = 32 << 20

// Bodies come through as they are sent, and take the same memory whatever their
// size: sandbox, gateway and upstream together, which are all in this process.
func TestLargeBodies(t *testing.T) {
	if testing.Short() {
		t.Skip("carries gigabytes")
	}
	large, err := strconv.ParseInt(cmp.Or(os.Getenv("SALLYPORT_BODY"), strconv.Itoa(largeBody)), 10, 64)
	if err != nil {
		t.Fatalf("SALLYPORT_BODY: %v", err)
	}
	if raceEnabled { // a tenth as fast
		large = min(large, 40_000_000)
	}
	for _, version := range []string{"h1", "h2"} {
		for _, credential := range []string{"", "key"} {
			name := version + map[string]string{"": "/plain", "key": "/scrubbed"}[credential]
			t.Run(name+"/down", func(t *testing.T) {
				m := newVersionEnvWith(t, version, credential)
				m.handle("/down/", func(w http.ResponseWriter, r *http.Request) {
					m.injected(t, r)
					size, err := strconv.ParseInt(strings.TrimPrefix(r.URL.Path, "/down/"), 10, 64)
					if err != nil {
						t.Error(err)
					}
					w.Header().Set("Content-Type", "text/plain")
					w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
					_, _ = io.Copy(w, newNumberedText(size)) // whether it came the client knows
				})
				steady(t, large, func(size int64) error {
					resp := m.do(t, m.request(t, "GET", fmt.Sprint("/down/", size), nil))
					defer resp.Body.Close()
					if resp.StatusCode != 200 || resp.ContentLength != size {
						return fmt.Errorf("got %s, length %d", resp.Status, resp.ContentLength)
					}
					got := newNumberedText(size)
					_, err := io.Copy(got, resp.Body)
					return errors.Join(err, got.whole())
				})
				m.counted(t, large, func(e *audit.Event) int64 { return e.Traffic.BytesIn })
			})
			t.Run(name+"/up", func(t *testing.T) {
				m := newVersionEnvWith(t, version, credential)
				m.handle("/up", func(w http.ResponseWriter, r *http.Request) {
					m.injected(t, r)
					got := newNumberedText(r.ContentLength)
					_, err := io.Copy(got, r.Body)
					if err := errors.Join(err, got.whole()); err != nil {
						t.Error(err)
					}
					fmt.Fprint(w, got.at)
				})
				steady(t, large, func(size int64) error {
					r := m.request(t, "PUT", "/up", newNumberedText(size))
					r.ContentLength = size
					resp := m.do(t, r)
					if got := text(t, resp); resp.StatusCode != 200 || got != fmt.Sprint(size) {
						return fmt.Errorf("got %s: %.100s", resp.Status, got)
					}
					return nil
				})
				m.counted(t, large, func(e *audit.Event) int64 { return e.Traffic.BytesOut })
			})
		}
	}
}

// newVersionEnvWith is a sandbox, steered, and an upstream of a version, with a
// credential between them or none.
func newVersionEnvWith(t *testing.T, version, credential string) *versionEnv {
	m := newVersionEnv(t, "transparent", version, version, "https")
	if credential == "" {
		return m
	}
	m.credential(credential, token)
	m.policy(func(in policy.Input) policy.Decision {
		d := inject(credential)(in)
		d.Upstream = m.reach
		return d
	})
	return m
}

// injected says whether a request has the credential where there is one.
func (m *versionEnv) injected(t *testing.T, r *http.Request) {
	want := ""
	if m.broker != nil {
		want = "Bearer " + token
	}
	if got := r.Header.Get("Authorization"); got != want {
		t.Errorf("Authorization %q, want %q", got, want)
	}
}

// counted holds the last request's completion against what was carried.
func (m *versionEnv) counted(t *testing.T, want int64, of func(*audit.Event) int64) {
	t.Helper()
	decisions, completions := m.settled(t)
	if got := of(completions[decisions[len(decisions)-1].ID()]); got != want {
		t.Errorf("the completion says %d bytes, want %d", got, want)
	}
}

// steady carries a usual body, then a large one, and compares the memory that each
// takes at its peak.
func steady(t *testing.T, large int64, carry func(size int64) error) {
	t.Helper()
	var peaks [2]int64
	for i, size := range []int64{min(usualBody, large/4), large} {
		begun := time.Now()
		debug.FreeOSMemory() // what the one before took
		// VmHWM is from now on, see proc_pid_clear_refs(5).
		must.OK(t, os.WriteFile("/proc/self/clear_refs", []byte("5"), 0))
		if err := carry(size); err != nil {
			t.Fatalf("a body of %d bytes: %v", size, err)
		}
		var err error
		if peaks[i], err = highWater(); err != nil {
			t.Fatal(err)
		}
		t.Logf("a body of %d bytes: at most %.1f MB resident, %.0f MB/s", size, float64(peaks[i])/1e6, float64(size)/1e6/time.Since(begun).Seconds())
	}
	if grown := peaks[1] - peaks[0]; grown > bodySlack {
		t.Errorf("a body of %d bytes took %d bytes of memory more than a smaller one", large, grown)
	}
}

// highWater is the most memory that this process had resident, in bytes.
func highWater() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if kb, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kb), "kB")), 10, 64)
			return n << 10, err
		}
	}
	return 0, errors.New("/proc/self/status has no VmHWM")
}
