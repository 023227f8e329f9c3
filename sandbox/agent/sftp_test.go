package agent_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pkg/sftp"

	"sallyport/internal/test/must"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/agent/wire"
)

// sftpTest has SFTP sessions of an agent, which begin in a folder of the test's.
type sftpTest struct {
	t   *testing.T
	c   *channel.Channel
	dir string
}

func newSFTP(t *testing.T) *sftpTest {
	t.Helper()
	_, _, c := serve(t)
	return &sftpTest{t, c, t.TempDir()}
}

func (p *sftpTest) at(name string) string { return filepath.Join(p.dir, name) }

func (p *sftpTest) connect() *channel.Port {
	p.t.Helper()
	c, err := p.c.SFTP(p.t.Context(), "", p.dir)
	must.OK(p.t, err)
	p.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (p *sftpTest) client() (*sftp.Client, *channel.Port) {
	p.t.Helper()
	c := p.connect()
	s, err := sftp.NewClientPipe(c, c, sftp.UseConcurrentWrites(true), sftp.UseConcurrentReads(true))
	must.OK(p.t, err)
	p.t.Cleanup(func() { _ = s.Close() })
	return s, c
}

func (p *sftpTest) holds(name string) string {
	p.t.Helper()
	text, err := os.ReadFile(p.at(name))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// small makes a folder that takes a megabyte, which root can.
func (p *sftpTest) small(name string) bool {
	p.t.Helper()
	if os.Getuid() != 0 {
		return false
	}
	must.OK(p.t, os.Mkdir(p.at(name), 0o755))
	must.OK(p.t, syscall.Mount("none", p.at(name), "tmpfs", 0, "size=1m"))
	p.t.Cleanup(func() { _ = syscall.Unmount(p.at(name), syscall.MNT_DETACH) })
	return true
}

func (p *sftpTest) await(what string, f func() bool) {
	p.t.Helper()
	must.Soon(p.t, what, f)
}

// over waits until no session goes on.
func (p *sftpTest) over() {
	p.t.Helper()
	p.await("the end of the session", func() bool {
		return call[wire.Activity](p.t, p.c, "GET", "/activity", nil).Attached == 0
	})
}

func TestSFTP(t *testing.T) {
	p := newSFTP(t)
	s, _ := p.client()
	if at, err := s.Getwd(); err != nil || at != p.dir {
		t.Errorf("it begins in %s, %v", at, err)
	}
	big := make([]byte, 8<<20+123)
	for i := range big {
		big[i] = byte(rand.Uint32())
	}
	f, err := s.Create("big")
	must.OK(t, err)
	if _, err := f.ReadFrom(bytes.NewReader(big)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p.at("big")); err == nil {
		t.Error("the file is there before it is whole")
	}
	if err := f.Close(); err != nil || p.holds("big") != string(big) {
		t.Fatalf("what was written is not there: %v", err)
	}
	f, err = s.Open("big")
	must.OK(t, err)
	var got bytes.Buffer
	if _, err := f.WriteTo(&got); err != nil || !bytes.Equal(got.Bytes(), big) {
		t.Errorf("%d bytes were read: %v", got.Len(), err)
	}
	// Forward, back, and beyond the end.
	for _, off := range []int64{5 << 20, 100, 0, 8 << 20, int64(len(big))} {
		b := make([]byte, 1000)
		n, err := f.ReadAt(b, off)
		if want := big[min(off, int64(len(big))):min(off+1000, int64(len(big)))]; !bytes.Equal(b[:n], want) || err != nil && !errors.Is(err, io.EOF) {
			t.Errorf("at %d: %d bytes, %v", off, n, err)
		}
	}
	_ = f.Close()
	must.OK(t, s.Mkdir("many"))
	for i := range 2500 {
		must.OK(t, os.WriteFile(filepath.Join(p.at("many"), fmt.Sprintf("%04d", i)), nil, 0o600))
	}
	if list, err := s.ReadDir("many"); err != nil || len(list) != 2500 {
		t.Errorf("%d files: %v", len(list), err)
	}
	for what, tt := range map[string]struct{ err, want error }{
		"a file that is not there":      {second(s.Stat("no")), os.ErrNotExist},
		"a rename to what is there":     {s.Rename("big", "many/0001"), sftp.ErrSSHFxFailure},
		"a folder removed as a file":    {s.Remove("many/.."), sftp.ErrSSHFxFailure},
		"a folder that is not empty":    {s.RemoveDirectory("many"), sftp.ErrSSHFxFailure},
		"a symbolic link":               {s.Symlink("big", "link"), sftp.ErrSSHFxOpUnsupported},
		"another owner":                 {s.Chown("big", 1, 1), sftp.ErrSSHFxOpUnsupported},
		"the owner that it has":         {s.Chown("big", os.Getuid(), os.Getgid()), nil},
		"a mode of what is not there":   {s.Chmod("no", 0o600), os.ErrNotExist},
		"more of what is not there":     {second(s.OpenFile("no", os.O_WRONLY|os.O_APPEND)), os.ErrNotExist},
		"a folder as a file":            {second(s.Create("many")), sftp.ErrSSHFxFailure},
		"a file in no folder":           {second(s.Create("no/where")), os.ErrNotExist},
		"a file that must not be there": {second(s.OpenFile("big", os.O_WRONLY|os.O_CREATE|os.O_EXCL)), sftp.ErrSSHFxFailure},
	} {
		var status *sftp.StatusError
		if errors.As(tt.err, &status) && tt.want != nil && status.FxCode() == tt.want {
			continue
		}
		if !errors.Is(tt.err, tt.want) {
			t.Errorf("%s: got %v, want %v", what, tt.err, tt.want)
		}
	}
	if err := s.PosixRename("big", "many/0001"); err != nil {
		t.Error(err)
	}
}

// An upload that is not written to its end in order leaves the file as it was.
func TestSFTPBroken(t *testing.T) {
	p := newSFTP(t)
	names := []string{"order", "gone"}
	small := p.small("full")
	if small {
		names = append(names, "full/it")
	}
	for _, name := range names {
		must.OK(t, os.WriteFile(p.at(name), []byte("as it was"), 0o600))
	}
	s, c := p.client()
	f, err := s.Create("order")
	must.OK(t, err)
	if _, err := f.WriteAt([]byte("x"), 100); err == nil {
		t.Error("a hole is written")
	}
	if err := f.Close(); err == nil {
		t.Error("and the file put in its place")
	}
	if small {
		f, err = s.Create("full/it")
		must.OK(t, err)
		_, err = f.ReadFrom(bytes.NewReader(make([]byte, 4<<20)))
		if cerr := f.Close(); err == nil && cerr == nil {
			t.Error("what has no room is written")
		}
	}
	f, err = s.Create("gone")
	must.OK(t, err)
	if _, err := f.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	p.over()
	for _, name := range names {
		if got := p.holds(name); got != "as it was" {
			t.Errorf("%s holds %.40q", name, got)
		}
	}
}

// Times, modes and lengths are set, of a file that is being written when it is in its
// place.
func TestSFTPSet(t *testing.T) {
	p := newSFTP(t)
	s, _ := p.client()
	then := time.Unix(1_000_000_000, 0)
	is := func(name string, mode os.FileMode, when time.Time, size int64) {
		t.Helper()
		i, err := os.Stat(p.at(name))
		if err != nil || i.Mode() != mode || !i.ModTime().Equal(when) || i.Size() != size {
			t.Errorf("%s: %v", name, err)
			if err == nil {
				t.Errorf("%v %v %d", i.Mode(), i.ModTime(), i.Size())
			}
		}
	}
	f, err := s.Create("new")
	must.OK(t, err)
	if _, err := f.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	// As scp -p does, on the open file.
	if err := f.Chmod(0o640); err != nil {
		t.Error(err)
	}
	if err := s.Chtimes("new", then, then); err != nil {
		t.Error(err)
	}
	if err := f.Truncate(3); err == nil {
		t.Error("what is being written is cut off")
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	is("new", 0o640, then, 5)
	if err := s.Chmod("new", 0o600); err != nil {
		t.Error(err)
	}
	if err := s.Chtimes("new", then.Add(time.Hour), then.Add(time.Hour)); err != nil {
		t.Error(err)
	}
	is("new", 0o600, then.Add(time.Hour), 5)
	if err := s.Truncate("new", 2); err != nil || p.holds("new") != "he" {
		t.Errorf("cut off: %q, %v", p.holds("new"), err)
	}
}

// Bytes added to a file come at its end, whatever its client counts from, and stay when the
// rest does not come.
func TestSFTPAppend(t *testing.T) {
	p := newSFTP(t)
	s, c := p.client()
	big := make([]byte, 1<<20+17)
	for i := range big {
		big[i] = byte(rand.Uint32())
	}
	const was = "as it was,"
	for what, tt := range map[string]struct {
		flags int
		from  int64
	}{
		"from 0":                {os.O_WRONLY | os.O_APPEND, 0},
		"from its end":          {os.O_WRONLY | os.O_APPEND | os.O_CREATE, int64(len(was))},
		"a resumed upload":      {os.O_WRONLY, int64(len(was))},
		"one that would create": {os.O_WRONLY | os.O_CREATE, int64(len(was))},
	} {
		must.OK(t, os.WriteFile(p.at("log"), []byte(was), 0o600))
		before, err := os.Stat(p.at("log"))
		must.OK(t, err)
		f, err := s.OpenFile("log", tt.flags)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if _, err := f.Seek(tt.from, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		if _, err := f.ReadFrom(bytes.NewReader(big)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if err := f.Close(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if got := p.holds("log"); got != was+string(big) {
			t.Errorf("%s: it holds %d bytes", what, len(got))
		}
		if after, err := os.Stat(p.at("log")); err != nil || !os.SameFile(before, after) {
			t.Errorf("%s: it is another file", what)
		}
	}
	// From its start on, as scp does: what is not written over stays, unless it is cut off.
	for what, tt := range map[string]struct {
		write string
		from  int64
		size  int64 // -1: not set
		want  string
		fails bool
	}{
		"over it":        {"AS", 0, -1, "AS it was,", false},
		"and cut off":    {"AS", 0, 2, "AS", false},
		"and later":      {"AS", 0, 5, "AS it", false},
		"and longer":     {"AS it was, too", 0, 14, "AS it was, too", false},
		"beyond its end": {"AS", 0, 100, was, true},
		"in the middle":  {"XX", 3, -1, was, true},
		"nothing":        {"", 0, -1, was, false},
	} {
		must.OK(t, os.WriteFile(p.at("log"), []byte(was), 0o640))
		f, err := s.OpenFile("log", os.O_WRONLY|os.O_CREATE)
		must.OK(t, err)
		if tt.write != "" {
			_, err = f.WriteAt([]byte(tt.write), tt.from)
		}
		if tt.size >= 0 {
			err = errors.Join(err, f.Truncate(tt.size))
		}
		if (err != nil) != tt.fails {
			t.Errorf("%s: %v", what, err)
		}
		if tt.fails && tt.size >= 0 {
			continue
		}
		_ = f.Close()
		if got := p.holds("log"); got != tt.want {
			t.Errorf("%s: it holds %q", what, got)
		}
	}
	// Emptied before it is written, by who has no other way.
	f, err := s.OpenFile("log", os.O_WRONLY)
	must.OK(t, err)
	if err := f.Truncate(0); err != nil {
		t.Error(err)
	}
	_, err = f.Write([]byte("new"))
	if err = errors.Join(err, f.Close()); err != nil || p.holds("log") != "new" {
		t.Errorf("emptied: %q, %v", p.holds("log"), err)
	}
	must.OK(t, os.WriteFile(p.at("log"), []byte(was), 0o600))
	f, err = s.OpenFile("log", os.O_WRONLY|os.O_APPEND)
	must.OK(t, err)
	if _, err := f.Write([]byte(" and")); err != nil {
		t.Fatal(err)
	}
	p.await("what has come", func() bool { return p.holds("log") == was+" and" })
	_ = c.Close()
	p.over()
	if got := p.holds("log"); got != was+" and" {
		t.Errorf("it holds %q", got)
	}
}

func second[A any](_ A, err error) error { return err }

// A session has a bounded number of open files and folders.
func TestSFTPOpen(t *testing.T) {
	p := newSFTP(t)
	s, _ := p.client()
	must.OK(t, os.WriteFile(p.at("it"), nil, 0o600))
	var open []*sftp.File
	for {
		f, err := s.Open("it")
		if err != nil {
			break
		}
		if open = append(open, f); len(open) > 64 {
			break
		}
	}
	if len(open) != 64 {
		t.Errorf("%d files are open", len(open))
	}
	if err := open[0].Close(); err != nil {
		t.Error(err)
	}
	if _, err := s.Open("it"); err != nil {
		t.Errorf("after one was closed: %v", err)
	}
}

// A session has the rights of its user.
func TestSFTPUser(t *testing.T) {
	must.Root(t)
	p := newSFTP(t)
	must.OK(t, errors.Join(os.Chmod(p.dir, 0o777), os.WriteFile(p.at("secret"), []byte("x"), 0o600)))
	for dir := filepath.Dir(p.dir); strings.HasPrefix(dir, os.TempDir()+"/"); dir = filepath.Dir(dir) {
		must.OK(t, os.Chmod(dir, 0o755))
	}
	c, err := p.c.SFTP(t.Context(), "65534:65534", p.dir)
	must.OK(t, err)
	defer c.Close()
	s, err := sftp.NewClientPipe(c, c)
	must.OK(t, err)
	defer s.Close()
	if _, err := s.Open("secret"); !errors.Is(err, os.ErrPermission) {
		t.Errorf("root's file: %v", err)
	}
	f, err := s.Create("own")
	must.OK(t, err)
	must.OK(t, f.Close())
	if i, err := os.Stat(p.at("own")); err != nil || i.Sys().(*syscall.Stat_t).Uid != 65534 {
		t.Errorf("a new file: %v, %v", i, err)
	}
	if _, err := p.c.SFTP(t.Context(), "nobody-there", ""); err == nil {
		t.Error("a session of no user")
	}
}

// Files only are written over and cut off, and what a link leads to is.
func TestSFTPSetKinds(t *testing.T) {
	p := newSFTP(t)
	s, _ := p.client()
	must.OK(t, errors.Join(os.WriteFile(p.at("plain"), []byte("hello"), 0o644), os.Symlink("plain", p.at("link")), syscall.Mkfifo(p.at("pipe"), 0o644)))
	if err := errors.Join(s.Chmod("link", 0o751), s.Truncate("link", 7)); err != nil {
		t.Error(err)
	}
	if i, err := os.Lstat(p.at("plain")); err != nil || i.Mode() != 0o751 || p.holds("plain") != "hello\x00\x00" {
		t.Errorf("%v, %v, %q", i.Mode(), err, p.holds("plain"))
	}
	for what, err := range map[string]error{
		"a folder cut off": s.Truncate(".", 0), "a pipe cut off": s.Truncate("pipe", 0), "less than nothing": s.Truncate("plain", -1),
		"a pipe read": second(s.Open("pipe")), "a pipe written": second(s.OpenFile("pipe", os.O_WRONLY)), "a folder read": second(s.Open(".")),
	} {
		if err == nil {
			t.Errorf("%s is done", what)
		}
	}
}

// A request that is shorter than it says ends nothing but itself.
func TestSFTPShort(t *testing.T) {
	p := newSFTP(t)
	ch := p.connect()
	ask := func(kind byte, payload ...byte) []byte {
		t.Helper()
		packet := append(binary.BigEndian.AppendUint32(nil, uint32(1+len(payload))), kind)
		if _, err := ch.Write(append(packet, payload...)); err != nil {
			t.Fatal(err)
		}
		head := make([]byte, 4)
		if _, err := io.ReadFull(ch, head); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, binary.BigEndian.Uint32(head))
		if _, err := io.ReadFull(ch, answer); err != nil {
			t.Fatal(err)
		}
		return answer
	}
	const initialize, setstat, status = 1, 9, 101
	ask(initialize, 0, 0, 0, 3)
	for range 2 {
		got := ask(setstat, 0, 0, 0, 1, 0, 0, 0, 1, '/', 0, 0, 0, 4) // SSH_FILEXFER_ATTR_PERMISSIONS, and none
		if got[0] != status || got[8] != 5 {                         // SSH_FX_BAD_MESSAGE
			t.Errorf("got %v", got)
		}
	}
}

// The rest of a file that is overwritten from its start stays as it is, and its holes take no
// room.
func TestSFTPSparse(t *testing.T) {
	p := newSFTP(t)
	s, _ := p.client()
	const size = 512 << 20
	f, err := os.Create(p.at("it"))
	must.OK(t, err)
	_, err = f.WriteAt([]byte("start"), 0)
	_, err2 := f.WriteAt([]byte("middle"), size/2)
	must.OK(t, errors.Join(err, err2, f.Truncate(size), f.Close()))
	to, err := s.OpenFile("it", os.O_WRONLY)
	must.OK(t, err)
	_, err = to.Write([]byte("S"))
	must.OK(t, errors.Join(err, to.Close()))
	if f, err = os.Open(p.at("it")); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for at, want := range map[int64]string{0: "Start", size / 2: "middle", size - 3: "\x00\x00\x00"} {
		got := make([]byte, len(want))
		if _, err := f.ReadAt(got, at); err != nil || string(got) != want {
			t.Errorf("at %d: %q, %v", at, got, err)
		}
	}
	i, err := f.Stat()
	must.OK(t, err)
	if used := i.Sys().(*syscall.Stat_t).Blocks * 512; i.Size() != size || used > 4<<20 {
		t.Errorf("%d bytes take %d", i.Size(), used)
	}
}

// Bytes that a user adds to a file are written with the user's rights: the system takes the
// mode from it that runs it with its owner's.
func TestSFTPAppendUser(t *testing.T) {
	must.Root(t)
	p := newSFTP(t)
	err := errors.Join(os.WriteFile(p.at("it"), []byte("x"), 0o600), os.Chown(p.at("it"), 65534, 65534), syscall.Chmod(p.at("it"), 0o4755))
	for dir := p.dir; strings.HasPrefix(dir, os.TempDir()+"/"); dir = filepath.Dir(dir) {
		err = errors.Join(err, os.Chmod(dir, 0o755))
	}
	must.OK(t, err)
	c, err := p.c.SFTP(t.Context(), "65534:65534", p.dir)
	must.OK(t, err)
	defer c.Close()
	s, err := sftp.NewClientPipe(c, c)
	must.OK(t, err)
	defer s.Close()
	f, err := s.OpenFile("it", os.O_WRONLY|os.O_APPEND)
	must.OK(t, err)
	_, err = f.Write([]byte("y"))
	if err := errors.Join(err, f.Close()); err != nil || p.holds("it") != "xy" {
		t.Errorf("%q, %v", p.holds("it"), err)
	}
	if i, err := os.Stat(p.at("it")); err != nil || i.Mode() != 0o755 {
		t.Errorf("%v, %v", i.Mode(), err)
	}
}
