package fsjail_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/agent/wire"
	"sallyport/sandbox/fsjail"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == fsjail.Command {
		if err := fsjail.Run(); err != nil {
			_, _ = os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// bench is a sandbox's files on a disk of the test's own.
type bench struct {
	fsjail.Tree
	key ed25519.PrivateKey
}

func newBench(t *testing.T) *bench {
	t.Helper()
	testnet.Privileged(t)
	dir := t.TempDir()
	must.OK(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"))
	t.Cleanup(func() {
		// Not lazily: nothing of a jail may be left that uses it.
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	b := &bench{Tree: fsjail.Tree{
		Upper: filepath.Join(dir, "layer/diff"), Memory: filepath.Join(dir, "memory"),
		Lower: []string{filepath.Join(dir, "image1"), filepath.Join(dir, "image0")},
	}}
	_, b.key, _ = ed25519.GenerateKey(nil)
	sh(t, dir, `mkdir -p layer/diff layer/work memory image1/etc image0/etc image0/memory
		echo note >memory/note; echo upper >layer/diff/own; echo lower >image0/etc/passwd; echo above >image1/etc/group`)
	return b
}

func sh(t *testing.T, dir, script string) {
	t.Helper()
	c := exec.Command("sh", "-ec", script)
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
}

// open returns the way to the files.
func (b *bench) open(t *testing.T) *channel.Channel {
	t.Helper()
	conn, err := fsjail.Open(b.Tree, b.key.Public().(ed25519.PublicKey))
	must.OK(t, err)
	c := channel.New(netip.MustParseAddr("127.0.0.1"), channel.Options{
		Key: b.key, Dial: func(context.Context, netip.AddrPort) (net.Conn, error) { return conn, nil },
	})
	t.Cleanup(func() {
		c.Close()
		_ = conn.Close()
	})
	return c
}

func at(route, path string) string {
	return "http://agent/files" + route + "?" + url.Values{"path": {path}}.Encode()
}

// body is what a request is answered with, or why not.
func body(t *testing.T, c *channel.Channel, method, target, contents string) (string, error) {
	t.Helper()
	var from io.Reader
	if contents != "" {
		from = strings.NewReader(contents)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, target, from)
	must.OK(t, err)
	resp, err := c.Do(req, true)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

func TestFiles(t *testing.T) {
	b := newBench(t)
	c := b.open(t)
	for path, want := range map[string]string{"/own": "upper\n", "/etc/passwd": "lower\n", "/etc/group": "above\n", "/memory/note": "note\n"} {
		if got, err := body(t, c, http.MethodGet, at("", path), ""); got != want || err != nil {
			t.Errorf("%s has %q, %v, want %q", path, got, err, want)
		}
	}
	for path, on := range map[string]string{"/etc/passwd": b.Upper + "/etc/passwd", "/memory/new": b.Memory + "/new"} {
		if _, err := body(t, c, http.MethodPut, at("", path), "mended"); err != nil {
			t.Error(err)
		}
		if got, err := os.ReadFile(on); string(got) != "mended" || err != nil {
			t.Errorf("on the host %s has %q, %v", on, got, err)
		}
	}
	if got, err := os.ReadFile(b.Lower[1] + "/etc/passwd"); string(got) != "lower\n" || err != nil {
		t.Errorf("the image has %q, %v", got, err)
	}
	// Nothing but files is served.
	for _, target := range []string{"http://agent/run", "http://agent/commands", "http://agent/ports"} {
		if _, err := body(t, c, http.MethodPost, target, `{"args": ["true"]}`); !errors.Is(err, channel.ErrEarlier) {
			t.Errorf("%s: %v", target, err)
		}
	}
}

// Whatever lies among a sandbox's files, the host's are neither read nor written, and
// nothing waits for ever.
func TestHostileFiles(t *testing.T) {
	b := newBench(t)
	outside := filepath.Join(t.TempDir(), "outside")
	must.OK(t, os.WriteFile(outside, []byte("secret"), 0o600))
	host := filepath.Dir(outside)
	sh(t, b.Upper, `
		ln -s `+outside+` link; ln -s `+host+` folder; ln -s ../../../../../../../../..`+outside+` up
		mkfifo pipe; mknod disk b 7 0; mknod null c 1 3; mknod kmsg c 1 11
		rm -rf memory; ln -s `+host+` memory; mkdir proc; ln -s /proc/1/root proc/root
		truncate -s 1T holes; chmod 0 own; ln -s loop loop`)
	c := b.open(t)
	for _, path := range []string{"/link", "/folder/outside", "/up", outside, "/memory/outside", "/proc/root" + outside, "/loop", "/pipe", "/disk", "/null", "/kmsg"} {
		if got, err := body(t, c, http.MethodGet, at("", path), ""); err == nil {
			t.Errorf("%s is read: %q", path, got)
		}
	}
	for _, path := range []string{"/link", "/folder/outside", "/memory/outside", "/up", "/folder/new", "/pipe", "/disk"} {
		_, _ = body(t, c, http.MethodPut, at("", path), "changed")
	}
	if got, err := os.ReadFile(outside); string(got) != "secret" || err != nil {
		t.Errorf("outside there is %q, %v", got, err)
	}
	if list, _ := os.ReadDir(host); len(list) != 1 {
		t.Errorf("outside there are %v", list)
	}
	if got, err := body(t, c, http.MethodGet, at("", "/own"), ""); got != "upper\n" || err != nil {
		t.Errorf("what has no mode: %q, %v", got, err)
	}
	var is wire.File
	if err := c.JSON(t.Context(), http.MethodGet, "/files/stat?path=/holes", nil, &is); err != nil || is.Size != 1<<40 {
		t.Errorf("holes: %+v, %v", is, err)
	}
	if _, err := body(t, c, http.MethodDelete, at("", "/memory"), ""); err != nil {
		t.Errorf("mending it: %v", err)
	}
}

// A link that climbs above the sandbox's root leads into the sandbox's own files: what
// is read there is not what the host has by the same path.
func TestLinksAboveTheRoot(t *testing.T) {
	b := newBench(t)
	host := t.TempDir()
	marker := filepath.Join(host, "marker")
	must.OK(t, os.WriteFile(marker, []byte("of the host\n"), 0o600))
	up := strings.Repeat("../", 40)
	sh(t, b.Upper, "mkdir -p root ."+host+"; echo of the sandbox >."+marker+
		"; ln -s "+up+host[1:]+" root/up; ln -s "+up+marker[1:]+" root/file; ln -s "+host+" root/absolute; ln -s "+up+" root/top")
	c := b.open(t)
	for _, path := range []string{"/root/up/marker", "/root/file", "/root/absolute/marker", "/root/top" + marker, "/root/" + up + marker[1:]} {
		if got, err := body(t, c, http.MethodGet, at("", path), ""); got != "of the sandbox\n" || err != nil {
			t.Errorf("%s has %q, %v", path, got, err)
		}
	}
	if _, err := body(t, c, http.MethodPut, at("", "/root/up/marker"), "changed"); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(marker); string(got) != "of the host\n" || err != nil {
		t.Errorf("the host has %q, %v", got, err)
	}
	must.OK(t, os.Remove(marker))
	if got, err := body(t, c, http.MethodGet, at("", "/root/file"), ""); got != "changed" || err != nil {
		t.Errorf("what was written by the link: %q, %v", got, err)
	}
}

// The process may do what its work takes.
func TestPrivileges(t *testing.T) {
	b := newBench(t)
	leaked, err := unix.Open(filepath.Join(t.TempDir(), "leaked"), unix.O_CREAT|unix.O_RDONLY, 0o600) // without O_CLOEXEC
	must.OK(t, err)
	defer unix.Close(leaked)
	b.open(t)
	var status string
	var fds []string
	for _, p := range children(t) {
		text, _ := os.ReadFile("/proc/" + p + "/cmdline")
		if string(text) == "sallyport\x00jail\x00" {
			raw, err := os.ReadFile("/proc/" + p + "/status")
			must.OK(t, err)
			status = string(raw)
			open, _ := filepath.Glob("/proc/" + p + "/fd/*")
			for _, fd := range open {
				to, _ := os.Readlink(fd)
				fds = append(fds, to)
			}
		}
	}
	for _, fd := range fds {
		if strings.Contains(fd, "leaked") {
			t.Errorf("it has the daemon's descriptor of %s", fd)
		}
	}
	for _, want := range []string{"CapPrm:\t00000000000000db", "CapEff:\t00000000000000db", "CapBnd:\t00000000000000db", "CapInh:\t0000000000000000", "NoNewPrivs:\t1"} {
		if !strings.Contains(status, want) {
			t.Errorf("no %q in\n%s", want, status)
		}
	}
}

func children(t *testing.T) []string {
	t.Helper()
	var all []string
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	must.OK(t, err)
	for _, f := range tasks {
		text, _ := os.ReadFile(f)
		all = append(all, strings.Fields(string(text))...)
	}
	return all
}
