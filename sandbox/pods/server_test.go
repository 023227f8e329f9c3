package pods

import (
	"encoding/binary"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
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
