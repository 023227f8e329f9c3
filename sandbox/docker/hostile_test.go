package docker

import (
	"net/http"
	"path/filepath"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/agent/wire"
	"sallyport/sandbox/disk"
)

// Root inside can do what it likes to its own files: the sandbox starts again, and its
// agent, which is root, shows and mends them.
func TestStartsWhateverIsInside(t *testing.T) {
	l := need(t)
	c := l.diskful(t, "", sandbox.GVisor)
	id := l.start(t, c)
	agent := channel.New(c.Address.Addr(), channel.Options{Key: l.key})
	defer agent.Close()
	// Faults of the accounts go together with faults of the agent's folder, which the next
	// start meets at another step.
	for _, a := range []struct{ name, script string }{
		{"passwd is a folder; a file for the agent's folder", "rm /etc/passwd; mkdir /etc/passwd; mv /.sallyport /gone; touch /.sallyport"},
		{"group is a folder; a loop for the agent's folder", "rm /etc/group; mkdir /etc/group; mv /.sallyport /gone2; rm -f /.sallyport; ln -s /.sallyport /.sallyport"},
		{"passwd is a pipe; a folder for the agent", "rm -rf /etc/passwd; mkfifo /etc/passwd; mv /.sallyport /gone3; mkdir -p /.sallyport/agent /.sallyport/host.pub"},
		{"passwd leads to a pipe; a link to the sandbox's memory for the agent's folder", "mkfifo /pipe; rm -f /etc/passwd; ln -s /pipe /etc/passwd; mv /.sallyport /gone6; ln -s /memory /.sallyport"},
		{"passwd has no line's end; a link into /proc for the agent's folder", "rm -rf /etc/passwd; head -c 1M /dev/zero | tr '\\0' x >/etc/passwd; rm -f /.sallyport; mv /.sallyport /gone7; ln -s /proc/1/root/etc /.sallyport"},
		{"another is called 0; a link to a device for the agent's folder", "rm -rf /etc/passwd; echo 0:x:1000:1000::/: >/etc/passwd; echo 0:x:1000: >/etc/group; rm -f /.sallyport; mv /.sallyport /gone8; ln -s /dev/null /.sallyport"},
		{"a file for the working folder; a file for /tmp", "rm -rf /root; touch /root; umount /tmp 2>/dev/null; mv /tmp /gone4; touch /tmp"},
		{"etc", "mv /etc /gone5; touch /etc"},
		{"modes", "chmod 0 / /.sallyport /etc /root"},
		{"no program", "rm -rf /usr /bin /lib /lib64 /sbin"},
	} {
		if out, _ := l.try(t, id, a.script); out != "" {
			t.Logf("%s: %s", a.name, out)
		}
		agent.Close()
		must.OK(t, l.runtime.Stop(t.Context(), id, 0))
		must.OK(t, disk.Yield(filepath.Dir(filepath.Dir(c.Layer))))
		if _, err := l.runtime.Start(t.Context(), id); err != nil {
			t.Errorf("%s: %v", a.name, err)
			break
		}
		agent = channel.New(c.Address.Addr(), channel.Options{Key: l.key})
		var is wire.File
		if err := agent.JSON(t.Context(), http.MethodGet, "/files/stat?path=/etc", nil, &is); err != nil {
			t.Errorf("%s: %v", a.name, err)
		}
		if err := agent.JSON(t.Context(), http.MethodPost, "/files/mkdir?path=/mended", wire.MakeFolder{Parents: true}, &is); err != nil {
			t.Errorf("%s: %v", a.name, err)
		}
		if err := agent.JSON(t.Context(), http.MethodDelete, "/files?path=/mended", nil, nil); err != nil {
			t.Errorf("%s: %v", a.name, err)
		}
	}
}
