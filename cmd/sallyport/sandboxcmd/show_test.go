package sandboxcmd

import (
	"bytes"
	"strings"
	"testing"

	"sallyport/sandbox"
)

// Whatever waits for the next session is shown, also that there will be less, and
// so is a sandbox of which nothing else is to be said.
func TestShow(t *testing.T) {
	now := sandbox.Spec{User: "app", Workdir: "/srv", Env: map[string]string{"A": "1"}, Offline: true, Memory: 1 << 30}
	for _, c := range []struct {
		name string
		info sandbox.Info
		want []string
	}{
		{"nothing", sandbox.Info{}, nil},
		{"less", sandbox.Info{Spec: now, Next: &sandbox.Spec{Memory: 1 << 30}}, []string{
			"next session's user: the image's", "next session's workdir: the image's", "next session's environment: none", "next session's offline: no more",
		}},
		{"other", sandbox.Info{Spec: now, Next: &sandbox.Spec{User: "root", Workdir: "/", Env: map[string]string{"B": "2"}, Offline: true, Memory: 2 << 30}}, []string{
			"next session's limits: 2GiB of memory", "next session's user: root", "next session's workdir: /", "next session's environment: B=2",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			show(&out, c.info)
			var got []string
			for line := range strings.Lines(out.String()) {
				if line = strings.Join(strings.Fields(line), " "); strings.HasPrefix(line, "next") {
					got = append(got, line)
				}
			}
			if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}
