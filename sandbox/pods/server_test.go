package pods

import (
	"encoding/binary"
	"encoding/json"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
	"sallyport/sandbox/pods/cni"
)

// Nobody but root may open the plugin's socket, whatever the umask is, nor could for the
// moment before its mode is changed: it is not.
func TestPluginSocketIsRoots(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "cni.sock")
	must.OK(t, os.WriteFile(path, nil, 0o666)) // an earlier daemon's
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	must.OK(t, err)
	t.Cleanup(func() { _ = unix.Close(watch) })
	_, err = unix.InotifyAddWatch(watch, dir, unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_ATTRIB)
	must.OK(t, err)
	umask := unix.Umask(0)
	l, err := Listen(t.Context(), path)
	unix.Umask(umask)
	must.OK(t, err)
	t.Cleanup(func() { _ = l.Close() })
	if i, err := os.Stat(path); err != nil || i.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("its mode is %v, %v", i.Mode(), err)
	}
	events := make([]byte, 4096)
	n, err := unix.Read(watch, events)
	must.OK(t, err)
	if one := unix.SizeofInotifyEvent + 16; n != one || binary.NativeEndian.Uint32(events[4:])&unix.IN_CREATE == 0 { // inotify(7): a name is padded to 16 bytes
		t.Errorf("its folder has seen %d bytes of events, want one that it was made", n)
	}
	c, err := new(net.Dialer).DialContext(t.Context(), "unix", path)
	must.OK(t, err)
	must.OK(t, c.Close())
}

// The CNI plugin's calls arrive, and a refusal's words arrive back.
func TestCalls(t *testing.T) {
	b := newBed(t)
	socket := filepath.Join(t.TempDir(), cni.SocketName)
	l, err := net.Listen("unix", socket)
	must.OK(t, err)
	s := &http.Server{Handler: b.Handler()}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	call := func(operation string, in any) error { return cni.Call(t.Context(), socket, operation, in) }

	a := b.plug(b.pod("ns", "a"), "s1", 7)
	must.OK(t, call(cni.Status, struct{}{}))
	must.OK(t, call(cni.Add, a))
	must.OK(t, call(cni.Check, a))
	if got := b.vouched(); got != "ns/a+" {
		t.Errorf("vouched for %q", got)
	}
	must.OK(t, call(cni.Collect, cni.Sessions{Valid: []string{"s1"}}))
	must.OK(t, call(cni.Delete, cni.Detachment{Session: "s1"}))
	if err := call(cni.Check, a); err == nil || !strings.Contains(err.Error(), "ns/a is not attached") {
		t.Errorf("got %v, want what is wrong", err)
	}
	a.UID = "other"
	if err := call(cni.Add, a); err == nil || !strings.Contains(err.Error(), "UID") {
		t.Errorf("got %v, want the refusal", err)
	}
}

// A call that is malformed is told from one that the node's state is against.
func TestMalformedCalls(t *testing.T) {
	b := newBed(t)
	a := b.plug(b.pod("ns", "a"), "s1", 7)
	b.cluster.away = true
	whole, err := json.Marshal(a)
	must.OK(t, err)
	for _, tt := range []struct {
		operation, body string
		want            int
	}{
		{cni.Add, string(whole), http.StatusConflict},
		{cni.Add, "", http.StatusBadRequest},
		{cni.Add, "[1]", http.StatusBadRequest},
		{cni.Add, "{}", http.StatusBadRequest},
		{cni.Check, string(whole), http.StatusConflict},
		{cni.Delete, `{"session": 1}`, http.StatusBadRequest},
		{cni.Collect, `{"valid": ["` + strings.Repeat("x", maxCall) + `"]}`, http.StatusBadRequest},
	} {
		w := httptest.NewRecorder()
		b.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, tt.operation, strings.NewReader(tt.body)))
		if w.Code != tt.want {
			t.Errorf("%s %.60s: got %d %s, want %d", tt.operation, tt.body, w.Code, w.Body, tt.want)
		}
	}
}
