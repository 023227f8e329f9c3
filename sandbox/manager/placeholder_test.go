package manager

import (
	"net/netip"
	"slices"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

// A sandbox's commands have the placeholders of what rules give it now. The placeholders that
// it ever had, and those of the sandbox that it is a fork of, are on record and known to the
// gateway before a command runs.
func TestPlaceholders(t *testing.T) {
	b := newBed(t)
	given := map[string]string{"KEY": "key", "MINE": "other"} // credentials by variable
	var published sandbox.Info
	use := func() {
		b.Manager.opt.Placeholders = func(i sandbox.Info) (list []sandbox.Placeholder, env map[string]string) {
			env = map[string]string{}
			for _, v := range []string{"KEY", "MINE", "NEW"} {
				if c := given[v]; c != "" {
					list, env[v] = append(list, sandbox.Placeholder{Variable: v, Credential: c, Of: i.ID}), c+" of "+i.ID
				}
			}
			return list, env
		}
		b.Manager.opt.Publish = func(_ netip.Addr, i sandbox.Info) {
			if i.ID != "" {
				published = i
			}
		}
	}
	use()
	if _, _, err := b.GetOrCreate(t.Context(), "a", sandbox.Spec{Env: map[string]string{"MINE": "set by hand"}}); err != nil {
		t.Fatal(err)
	}
	a := b.live(t, "a")
	begin := func(name string) map[string]string {
		t.Helper()
		_, spec, _ := b.startAgent(t.Context(), name) // whose agent does not answer
		return spec.Env
	}
	if env := begin("a"); env["KEY"] != "key of "+a.ID || env["MINE"] != "set by hand" {
		t.Errorf("the environment is %v", env)
	}
	own := sandbox.Placeholder{Variable: "KEY", Credential: "key", Of: a.ID}
	if want := []sandbox.Placeholder{own}; !slices.Equal(published.Placeholders, want) {
		t.Errorf("published %+v, want %+v", published.Placeholders, want)
	}
	if i := b.must(t)(b.Get("a")); i.Spec.Env["KEY"] != "" {
		t.Error("the spec has the placeholder")
	}
	given = map[string]string{"NEW": "new"}
	c := b.fork(t, "a", sandbox.ForkSpec{})[0]
	if !slices.Equal(c.Placeholders, []sandbox.Placeholder{own}) {
		t.Errorf("a fork holds %+v", c.Placeholders)
	}
	if env := begin(c.Name); env["NEW"] != "new of "+c.ID || env["KEY"] != "" {
		t.Errorf("the fork's environment is %v", env)
	}
	must.OK(t, b.Close())
	b.open(t)
	use()
	if got, want := b.must(t)(b.Get(c.Name)).Placeholders, []sandbox.Placeholder{own, {Variable: "NEW", Credential: "new", Of: c.ID}}; !slices.Equal(got, want) {
		t.Errorf("after a restart the fork holds %+v, want %+v", got, want)
	}
}
