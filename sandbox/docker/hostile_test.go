package docker

import (
	"net/http"
	"path/filepath"
	"testing"

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
	for _, a := range []struct{ name, script string }{
		{"passwd is a folder", "rm /etc/passwd; mkdir /etc/passwd"},
		{"group is a folder", "rm /etc/group; mkdir /etc/group"},
		{"passwd is a pipe", "rm -rf /etc/passwd; mkfifo /etc/passwd"},
		{"passwd leads to a pipe", "mkfifo /pipe; rm -f /etc/passwd; ln -s /pipe /etc/passwd"},
		{"passwd has no line's end", "rm -rf /etc/passwd; head -c 1M /dev/zero | tr '\\0' x >/etc/passwd"},
		{"another is called 0", "rm -rf /etc/passwd; echo 0:x:1000:1000::/: >/etc/passwd; echo 0:x:1000: >/etc/group"},
		{"a file for the agent's folder", "mv /.sallyport /gone; touch /.sallyport"},
		{"a loop for the agent's folder", "mv /.sallyport /gone2; rm -f /.sallyport; ln -s /.sallyport /.sallyport"},
		{"a folder for the agent", "mv /.sallyport /gone3; mkdir -p /.sallyport/agent /.sallyport/host.pub"},
		{"a link to the sandbox's memory for the agent's folder", "mv /.sallyport /gone6; ln -s /memory /.sallyport"},
		{"a link into /proc for the agent's folder", "rm -f /.sallyport; mv /.sallyport /gone7; ln -s /proc/1/root/etc /.sallyport"},
		{"a link to a device for the agent's folder", "rm -f /.sallyport; mv /.sallyport /gone8; ln -s /dev/null /.sallyport"},
		{"a file for the working folder", "rm -rf /root; touch /root"},
		{"a file for /tmp", "umount /tmp 2>/dev/null; mv /tmp /gone4; touch /tmp"},
		{"etc", "mv /etc /gone5; touch /etc"},
		{"modes", "chmod 0 / /.sallyport /etc /root"},
		{"no program", "rm -rf /usr /bin /lib /lib64 /sbin"},
	} {
		if out, _ := l.try(t, id, a.script); out != "" {
			t.Logf("%s: %s", a.name, out)
		}
		agent.Close()
		if err := l.runtime.Stop(t.Context(), id, 0); err != nil {
			t.Fatal(err)
		}
		if err := disk.Yield(filepath.Dir(filepath.Dir(c.Layer))); err != nil {
			t.Fatal(err)
		}
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
