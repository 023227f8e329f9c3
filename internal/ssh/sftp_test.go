package ssh

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
	"testing"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"sallyport/audit"
)

func (p *porch) sftp(c *ssh.Client) *sftp.Client {
	p.t.Helper()
	s, err := sftp.NewClient(c, sftp.UseConcurrentWrites(true), sftp.UseConcurrentReads(true))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = s.Close() })
	return s
}

func (p *porch) holds(name string) string {
	p.t.Helper()
	text, err := os.ReadFile(p.files.at(name))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func TestSFTP(t *testing.T) {
	p := newPorch(t)
	c := p.in()
	s := p.sftp(c)
	if at, err := s.Getwd(); err != nil || at != "/home" {
		t.Errorf("it begins in %s, %v", at, err)
	}
	big := make([]byte, 8<<20+123)
	for i := range big {
		big[i] = byte(rand.Uint32())
	}
	f, err := s.Create("/big")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadFrom(bytes.NewReader(big)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p.files.at("/big")); err == nil {
		t.Error("the file is there before it is whole")
	}
	if err := f.Close(); err != nil || p.holds("big") != string(big) {
		t.Fatalf("what was written is not there: %v", err)
	}
	f, err = s.Open("/big")
	if err != nil {
		t.Fatal(err)
	}
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
	if err := s.Mkdir("/many"); err != nil {
		t.Fatal(err)
	}
	for i := range 2500 {
		if err := os.WriteFile(filepath.Join(p.files.at("/many"), fmt.Sprintf("%04d", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := s.ReadDir("/many"); err != nil || len(list) != 2500 {
		t.Errorf("%d files: %v", len(list), err)
	}
	for what, tt := range map[string]struct{ err, want error }{
		"a file that is not there":      {second(s.Stat("/no")), os.ErrNotExist},
		"a rename to what is there":     {s.Rename("/big", "/many/0001"), sftp.ErrSSHFxFailure},
		"a folder removed as a file":    {s.Remove("/many/.."), sftp.ErrSSHFxFailure},
		"a folder that is not empty":    {s.RemoveDirectory("/many"), sftp.ErrSSHFxFailure},
		"a symbolic link":               {s.Symlink("/big", "/link"), sftp.ErrSSHFxOpUnsupported},
		"another owner":                 {s.Chown("/big", 1, 1), sftp.ErrSSHFxOpUnsupported},
		"the owner that it has":         {s.Chown("/big", 0, 0), nil},
		"a mode of what is not there":   {s.Chmod("/no", 0o600), os.ErrNotExist},
		"more of what is not there":     {second(s.OpenFile("/no", os.O_WRONLY|os.O_APPEND)), os.ErrNotExist},
		"a folder as a file":            {second(s.Create("/many")), sftp.ErrSSHFxFailure},
		"a file in no folder":           {second(s.Create("/no/where")), os.ErrNotExist},
		"a file that must not be there": {second(s.OpenFile("/big", os.O_WRONLY|os.O_CREATE|os.O_EXCL)), sftp.ErrSSHFxFailure},
	} {
		var status *sftp.StatusError
		if errors.As(tt.err, &status) && tt.want != nil && status.FxCode() == tt.want {
			continue
		}
		if !errors.Is(tt.err, tt.want) {
			t.Errorf("%s: got %v, want %v", what, tt.err, tt.want)
		}
	}
	if err := s.PosixRename("/big", "/many/0001"); err != nil {
		t.Error(err)
	}
	_ = s.Close()
	p.await("a record of the bytes", func() bool {
		p.book.mu.Lock()
		defer p.book.mu.Unlock()
		for _, e := range p.book.events {
			if x := e.Unmapped.Sallyport; x.Kind == audit.KindCompletion && x.Protocol == "sftp" && e.Traffic.BytesIn == int64(len(big)) && e.Traffic.BytesOut >= int64(len(big)) {
				return true
			}
		}
		return false
	})
}

func second[A any](_ A, err error) error { return err }

// What is not written to its end in order leaves the file as it was.
func TestSFTPBroken(t *testing.T) {
	p := newPorch(t)
	for _, name := range []string{"order", "gone", "full"} {
		if err := os.WriteFile(p.files.at(name), []byte("as it was"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := p.in()
	s := p.sftp(c)
	f, err := s.Create("/order")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("x"), 100); err == nil {
		t.Error("a hole is written")
	}
	if err := f.Close(); err == nil {
		t.Error("and the file put in its place")
	}
	f, err = s.Create("/full")
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.ReadFrom(bytes.NewReader(make([]byte, 4<<20)))
	if cerr := f.Close(); err == nil && cerr == nil {
		t.Error("what has no room is written")
	}
	f, err = s.Create("/gone")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	p.await("the end", func() bool { return p.book.has(audit.KindCompletion, "sftp", "") && p.door.Status().Connections == 0 })
	for _, name := range []string{"order", "gone", "full"} {
		if got := p.holds(name); got != "as it was" {
			t.Errorf("%s holds %.40q", name, got)
		}
	}
}

// Files and ports are off for a key that does not have them, and the answer says
// where that is written.
func TestOff(t *testing.T) {
	p := newPorch(t)
	k := p.keys()
	k[0].Allow = nil
	p.door.Use(k)
	c := p.in()
	ch, requests, err := c.OpenChannel("session", nil)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := ch.SendRequest("subsystem", true, ssh.Marshal(struct{ Name string }{"netconf"})); ok || err != nil {
		t.Errorf("another subsystem: %v, %v", ok, err)
	}
	if ok, err := ch.SendRequest("subsystem", true, ssh.Marshal(struct{ Name string }{"sftp"})); !ok || err != nil {
		t.Fatal(ok, err)
	}
	said, err := io.ReadAll(ch.Stderr())
	if r := <-requests; err != nil || r == nil || r.Type != "exit-status" || r.Payload[3] != 1 || string(said) != "sallyport: "+sftpOff+"\r\n" {
		t.Errorf("files: %v, %q, %+v", err, said, r)
	}
	if _, err := c.Dial("tcp", "localhost:8000"); err == nil || !strings.Contains(err.Error(), forwardOff) {
		t.Errorf("a port: %v", err)
	}
	if _, err := c.Listen("tcp", "127.0.0.1:0"); err == nil {
		t.Error("a port for the sandbox")
	}
	if _, _, err := c.OpenChannel("x11", nil); err == nil {
		t.Error("a display")
	}
}

// Times, modes and lengths are set, of a file that is being written when it is in its
// place.
func TestSFTPSet(t *testing.T) {
	p := newPorch(t)
	s := p.sftp(p.in())
	then := time.Unix(1_000_000_000, 0)
	is := func(name string, mode os.FileMode, when time.Time, size int64) {
		t.Helper()
		i, err := os.Stat(p.files.at(name))
		if err != nil || i.Mode() != mode || !i.ModTime().Equal(when) || i.Size() != size {
			t.Errorf("%s: %v", name, err)
			if err == nil {
				t.Errorf("%v %v %d", i.Mode(), i.ModTime(), i.Size())
			}
		}
	}
	f, err := s.Create("/new")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	// As scp -p does, on the open file.
	if err := f.Chmod(0o640); err != nil {
		t.Error(err)
	}
	if err := s.Chtimes("/new", then, then); err != nil {
		t.Error(err)
	}
	if err := f.Truncate(3); err == nil {
		t.Error("what is being written is cut off")
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	is("new", 0o640, then, 5)
	if err := s.Chmod("/new", 0o600); err != nil {
		t.Error(err)
	}
	if err := s.Chtimes("/new", then.Add(time.Hour), then.Add(time.Hour)); err != nil {
		t.Error(err)
	}
	is("new", 0o600, then.Add(time.Hour), 5)
	if err := s.Truncate("/new", 2); err != nil || p.holds("new") != "he" {
		t.Errorf("cut off: %q, %v", p.holds("new"), err)
	}
}

func TestSFTPEarlier(t *testing.T) {
	p := newPorch(t)
	p.files.earlier = true
	if err := os.WriteFile(p.files.at("it"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var said *sftp.StatusError
	if err := p.sftp(p.in()).Chmod("/it", 0o640); !errors.As(err, &said) || said.FxCode() != sftp.ErrSSHFxOpUnsupported {
		t.Errorf("got %v", err)
	}
}

// What is added to a file comes at its end, whatever its client counts from, and
// stays when the rest does not come.
func TestSFTPAppend(t *testing.T) {
	p := newPorch(t)
	c := p.in()
	s := p.sftp(c)
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
		if err := os.WriteFile(p.files.at("log"), []byte(was), 0o600); err != nil {
			t.Fatal(err)
		}
		before, err := os.Stat(p.files.at("log"))
		if err != nil {
			t.Fatal(err)
		}
		f, err := s.OpenFile("/log", tt.flags)
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
		if after, err := os.Stat(p.files.at("log")); err != nil || !os.SameFile(before, after) {
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
		if err := os.WriteFile(p.files.at("log"), []byte(was), 0o640); err != nil {
			t.Fatal(err)
		}
		f, err := s.OpenFile("/log", os.O_WRONLY|os.O_CREATE)
		if err != nil {
			t.Fatal(err)
		}
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
	f, err := s.OpenFile("/log", os.O_WRONLY)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(0); err != nil {
		t.Error(err)
	}
	_, err = f.Write([]byte("new"))
	if err = errors.Join(err, f.Close()); err != nil || p.holds("log") != "new" {
		t.Errorf("emptied: %q, %v", p.holds("log"), err)
	}
	if err := os.WriteFile(p.files.at("log"), []byte(was), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err = s.OpenFile("/log", os.O_WRONLY|os.O_APPEND)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte(" and")); err != nil {
		t.Fatal(err)
	}
	p.await("what has come", func() bool { return p.holds("log") == was+" and" })
	_ = c.Close()
	p.await("the end", func() bool { return p.door.Status().Connections == 0 })
	if got := p.holds("log"); got != was+" and" {
		t.Errorf("it holds %q", got)
	}
}

// A request that is shorter than it says ends nothing but itself.
func TestSFTPShort(t *testing.T) {
	p := newPorch(t)
	c := p.in()
	ch, requests, err := c.OpenChannel("session", nil)
	if err != nil {
		t.Fatal(err)
	}
	go ssh.DiscardRequests(requests)
	if ok, err := ch.SendRequest("subsystem", true, ssh.Marshal(struct{ Name string }{"sftp"})); !ok || err != nil {
		t.Fatal(ok, err)
	}
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
	got := ask(setstat, 0, 0, 0, 1, 0, 0, 0, 1, '/', 0, 0, 0, 4) // SSH_FILEXFER_ATTR_PERMISSIONS, and none
	if got[0] != status || got[8] != 5 {                         // SSH_FX_BAD_MESSAGE
		t.Errorf("got %v", got)
	}
	if out, err := p.session(c).Output("both"); string(out) != "out" {
		t.Errorf("and afterwards: %q, %v", out, err)
	}
}
