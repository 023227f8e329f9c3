package keeper_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sallyport/audit"
	"sallyport/internal/test/must"
	"sallyport/internal/test/ondisk"
	"sallyport/memory"
	"sallyport/memory/keeper"
)

// findings are how many findings there are, of what is in quarantine.
func (r *rig) findings() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.records {
		if e.Unmapped.Sallyport.State == audit.FindingInMemory {
			n++
		}
	}
	return n
}

// knows is what the credential's source has, or that it cannot be read.
func (r *rig) knows(away error, known ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away, r.known = away, known
}

// remembers has the sandbox write a secret, in a file that it then writes anew, and in one
// that stays.
func (r *rig) remembers(text string) {
	r.t.Helper()
	for _, a := range []string{"The key is " + text + ".\n", "There was a key.\n"} {
		r.writes("memories/a.md", a)
		must.OK(r.t, r.Record(r.t.Context(), r.o, memory.Cause{Operation: memory.Found}))
	}
	r.writes("memories/b.md", "Use "+text+" for it.\n")
	must.OK(r.t, r.Record(r.t.Context(), r.o, memory.Cause{Operation: memory.Found}))
}

// forgotten checks that a secret is in quarantine, from the file and from the version, that
// there is a finding for each, and that no file of the host's has it.
func (r *rig) forgotten(text string) {
	r.t.Helper()
	list := value(r.Quarantined(r.t.Context(), r.o))(r.t)
	var paths []string
	for _, q := range list {
		paths = append(paths, q.Path)
	}
	if slices.Sort(paths); !slices.Equal(paths, []string{"memories/a.md", "memories/b.md"}) || r.findings() != 2 {
		r.t.Errorf("in quarantine are %q, with %d findings", paths, r.findings())
	}
	if v := value(r.Verify(r.t.Context(), r.o))(r.t); len(v.Problems) > 0 || v.Recorded != v.Versions {
		r.t.Errorf("verified: %+v", v)
	}
	if err := r.Close(); err != nil {
		r.t.Fatal(err)
	}
	if found := ondisk.Find(r.t, r.dir, text); len(found) > 0 {
		r.t.Errorf("the secret is in %q", found)
	}
	if _, err := os.Stat(filepath.Join(r.dir, "demo", memory.RecheckFile)); err == nil {
		r.t.Error("a recheck is still due")
	}
}

var errAway = errors.New("the source is sealed")

// A text written while the source of a credential cannot be read is compared with its secret
// when that can be read: by the next use, also of a daemon that was started since, and with
// nobody asking.
func TestSecretIsReadableLater(t *testing.T) {
	for name, then := range map[string]func(r *rig, folder string) *rig{
		"the next use": func(r *rig, _ string) *rig {
			value(r.Search(r.t.Context(), r.o, keeper.Question{Query: "key"}))(r.t)
			return r
		},
		"the next use, after a restart": func(r *rig, folder string) *rig {
			records := r.records
			must.OK(r.t, r.Close())
			r = rigIn(r.t, folder)
			r.records = records
			value(r.Search(r.t.Context(), r.o, keeper.Question{Query: "key"}))(r.t)
			return r
		},
		"by itself": func(r *rig, _ string) *rig {
			r.RecheckMissed([]memory.Owner{r.o})
			must.Soon(r.t, "two findings", func() bool { return r.findings() == 2 })
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			r := rigIn(t, folder)
			r.knows(errAway)
			r.remembers(secret)
			value(r.Search(t.Context(), r.o, keeper.Question{Query: "key"}))(t)
			if n := r.findings(); n > 0 {
				t.Fatalf("%d findings before the secret can be read", n)
			}
			r.knows(nil, secret)
			then(r, folder).forgotten(secret)
		})
	}
}

// A secret that is set later is taken out of what was written before.
func TestSecretIsSetLater(t *testing.T) {
	r := newRig(t)
	r.remembers("marzipan-q3egvz7n2xwkdb41")
	r.knows(nil, secret, "marzipan-q3egvz7n2xwkdb41")
	r.RecheckMissed([]memory.Owner{r.o}) // nothing was missed
	must.OK(t, r.Recheck([]memory.Owner{r.o, {ID: "id-of-none", Name: "none"}}))
	must.Soon(t, "two findings", func() bool { return r.findings() == 2 })
	r.forgotten("marzipan-q3egvz7n2xwkdb41")
}

// A secret that becomes another one while a memory is compared with the one before is not
// missed, nor one that cannot be read meanwhile.
func TestSecretIsSetMeanwhile(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	r.remembers("marzipan-q3egvz7n2xwkdb41")
	must.OK(t, keeper.MarkRecheck(filepath.Join(r.dir, "demo")))
	r.known = []string{"something else"}
	r.asked = func() {
		r.asked = nil
		r.away = errAway
	}
	value(r.Search(ctx, r.o, keeper.Question{}))(t)
	if r.asked != nil {
		t.Fatal("nothing was compared")
	}
	r.knows(nil, "marzipan-q3egvz7n2xwkdb41")
	value(r.Search(ctx, r.o, keeper.Question{}))(t)
	r.forgotten("marzipan-q3egvz7n2xwkdb41")
}

// A fork has what its parent was not compared with, and is compared with it too.
func TestForkIsRechecked(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	r.knows(errAway)
	r.remembers(secret)
	child := memory.Owner{ID: "id-of-child", Name: "child"}
	value(memory.Ensure(filepath.Join(r.dir, "child")))(t)
	must.OK(t, r.Inherit(ctx, r.o, child))
	must.OK(t, r.Record(ctx, child, memory.Cause{Operation: memory.Forked, From: "demo"}))
	r.knows(nil, secret)
	value(r.Search(ctx, child, keeper.Question{}))(t)
	if list := value(r.Quarantined(ctx, child))(t); len(list) != 2 {
		t.Errorf("in the child's quarantine: %s", fmt.Sprint(list))
	}
}
