package access_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"sallyport/gateway/access"
	"sallyport/internal/test/must"
)

// exposed opens a store in which each owner has so many exposures.
func exposed(t *testing.T, counts map[string]int) *access.Ports {
	t.Helper()
	var list []access.Port
	for owner, n := range counts {
		for i := range n {
			box := fmt.Sprintf("%s-%d", owner, i/32)
			list = append(list, access.Port{
				Sandbox: box, SandboxID: box, Owner: owner, Port: uint16(1024 + i%32),
				Expires: time.Now().Add(time.Hour), Digest: strings.Repeat("0", 64),
			})
		}
	}
	raw, err := json.Marshal(list)
	path := t.TempDir() + "/exposures.json"
	if err = errors.Join(err, os.WriteFile(path, raw, 0o600)); err != nil {
		t.Fatal(err)
	}
	s, err := access.OpenPorts(path)
	must.OK(t, err)
	return s
}

// An owner has as many exposures as are left for others, and no more.
func TestExposuresAreShared(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		counts map[string]int
		owner  string
		full   bool
	}{
		"the first":                      {nil, "acme", false},
		"half of all, alone":             {map[string]int{"acme": 511}, "acme", false},
		"more than half":                 {map[string]int{"acme": 512}, "acme", true},
		"another beside one who has all": {map[string]int{"acme": 512}, "other", false},
		"the host's own beside that":     {map[string]int{"acme": 512}, "", false},
		"the host's own, more than half": {map[string]int{"": 512}, "", true},
		"two who have a third each":      {map[string]int{"acme": 341, "other": 342}, "acme", true},
		"a third beside two of a third":  {map[string]int{"acme": 341, "other": 341}, "third", false},
		"the last one of all":            {map[string]int{"a": 511, "b": 256, "c": 256}, "last", false},
		"beyond all":                     {map[string]int{"a": 512, "b": 256, "c": 256}, "last", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := exposed(t, tt.counts)
			_, token, err := s.Add("new", "new", tt.owner, 8000, time.Hour)
			if errors.Is(err, access.ErrPortsFull) != tt.full || (err == nil) == tt.full || (token == "") != tt.full {
				t.Errorf("got %v", err)
			}
			if err != nil && !strings.Contains(err.Error(), "unexpose") {
				t.Errorf("%v says not what to do", err)
			}
		})
	}
}

// A new token for what is exposed takes no room.
func TestExposingAgain(t *testing.T) {
	t.Parallel()
	s := exposed(t, map[string]int{"acme": 500, "other": 500})
	if _, _, err := s.Add("acme-0", "acme-0", "acme", 1024, time.Hour); err != nil {
		t.Errorf("the same port: %v", err)
	}
	if n := len(s.List()); n != 1000 {
		t.Errorf("%d exposures", n)
	}
	if _, _, err := s.Add("acme-0", "acme-0", "acme", 9000, time.Hour); !errors.Is(err, access.ErrPortsFull) || !strings.Contains(err.Error(), "32") {
		t.Errorf("a sandbox's 33rd: %v", err)
	}
	must.OK(t, s.Forget("acme-1"))
	if _, _, err := s.Add("acme-1", "acme-1", "acme", 9000, time.Hour); !errors.Is(err, access.ErrPortsFull) {
		t.Errorf("beyond the share: %v", err)
	}
}
