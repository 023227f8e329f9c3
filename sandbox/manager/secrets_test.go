package manager

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"sallyport/audit"
	"sallyport/sandbox"
)

// by is a context of an operator.
func by(ctx context.Context, who string) context.Context {
	a := new(audit.Actor)
	a.User.Name, a.User.UID = "key "+who, "key:"+who
	return audit.By(ctx, a, nil)
}

// Comparing an environment with secrets answers guesses. It names no credential, is
// bounded for each call and each caller, and a hit is on record with its credential.
func TestGuesses(t *testing.T) {
	h := newFaultHost()
	m := open(t, h, t.TempDir())
	m.opt.Subnet = netip.MustParsePrefix("10.9.0.0/24")
	driver, other := by(t.Context(), "driver"), by(t.Context(), "other")
	if _, _, err := m.GetOrCreate(driver, "box", sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	secret := map[string]string{"A": "fine", "B": "known secret"}
	for name, do := range map[string]func() error{
		"create": func() error { _, _, err := m.GetOrCreate(driver, "new", sandbox.Spec{Env: secret}); return err },
		"set":    func() error { _, err := m.Set(driver, "box", sandbox.SpecChange{Env: secret}); return err },
		"exec": func() error {
			_, err := m.Exec(driver, "box", sandbox.CommandSpec{Args: []string{"true"}, Env: secret}, sandbox.Streams{})
			return err
		},
		"command": func() error {
			_, err := m.StartCommand(driver, "box", sandbox.CommandSpec{Args: []string{"true"}, Env: secret})
			return err
		},
	} {
		before := len(h.deeds)
		err := do()
		var refused *sandbox.SecretError
		if !errors.As(err, &refused) || !errors.Is(err, sandbox.ErrBadSpec) || refused.Credential != "key" || strings.Contains(err.Error(), "key") {
			t.Errorf("%s: got %v, want a refusal that names no credential", name, err)
		}
		if deeds := h.deeds[before:]; len(deeds) != 2 || deeds[0].State != "refused" || deeds[1].State != audit.FindingGiven || !strings.Contains(deeds[0].Detail, "variable B") {
			t.Errorf("%s: got events %+v, want one of the hit, and its finding", name, deeds)
		}
	}
	h.fault = "compare"
	_, _, err := m.GetOrCreate(driver, "new", sandbox.Spec{Env: map[string]string{"A": "fine"}})
	if refused := (*sandbox.SecretError)(nil); !errors.As(err, &refused) || !errors.Is(refused.Err, errFault) || strings.Contains(err.Error(), errFault.Error()) {
		t.Errorf("what cannot be compared: got %v", err)
	}
	h.fault = ""

	many := map[string]string{}
	for i := range 100_000 {
		many[fmt.Sprint("V", i)] = fmt.Sprint("guess ", i)
	}
	long := map[string]string{"A": strings.Repeat("x", maxEnvironment)}
	for name, env := range map[string]map[string]string{"100,000 guesses": many, "a long one": long} {
		if _, _, err := m.GetOrCreate(other, "new", sandbox.Spec{Env: env}); !errors.Is(err, sandbox.ErrBadSpec) {
			t.Errorf("%s: got %v, want %v", name, err, sandbox.ErrBadSpec)
		}
	}
	guess := func(ctx context.Context, n int) error {
		_, err := m.Set(ctx, "box", sandbox.SpecChange{Env: map[string]string{"A": fmt.Sprint(n, strings.Repeat("x", 200<<10))}})
		return err
	}
	for range 20 { // the same is no other guess
		if err := guess(other, 0); errors.Is(err, sandbox.ErrCompared) {
			t.Fatal(err)
		}
	}
	tried := 1
	for ; tried < 20 && !errors.Is(guess(other, tried), sandbox.ErrCompared); tried++ {
	}
	if tried != 5 { // 1 MiB
		t.Errorf("%d environments of 200 KiB were compared", tried)
	}
	if err := guess(driver, 1); errors.Is(err, sandbox.ErrCompared) {
		t.Errorf("another caller: %v", err)
	}
}
