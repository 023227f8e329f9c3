package ssh

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"sallyport/audit"
	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

func (p *sshTest) sftp(c *ssh.Client) *sftp.Client {
	p.t.Helper()
	s, err := sftp.NewClient(c, sftp.UseConcurrentWrites(true), sftp.UseConcurrentReads(true))
	must.OK(p.t, err)
	p.t.Cleanup(func() { _ = s.Close() })
	return s
}

// The messages of a client and the sandbox's agent pass as they are, and are counted.
func TestSFTP(t *testing.T) {
	p := newSSHTest(t)
	s := p.sftp(p.in())
	if at, err := s.Getwd(); err != nil || at != p.block.dir {
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
	must.OK(t, f.Close())
	if got, err := os.ReadFile(filepath.Join(p.block.dir, "big")); err != nil || !bytes.Equal(got, big) {
		t.Fatalf("what was written is not there: %v", err)
	}
	if f, err = s.Open("big"); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if _, err := f.WriteTo(&got); err != nil || !bytes.Equal(got.Bytes(), big) {
		t.Errorf("%d bytes were read: %v", got.Len(), err)
	}
	_ = f.Close()
	_ = s.Close()
	most := int64(len(big) + len(big)/10) // with what SFTP adds
	p.await("a record of the bytes", func() bool {
		p.book.mu.Lock()
		defer p.book.mu.Unlock()
		for _, e := range p.book.events {
			if x := e.Unmapped.Sallyport; x.Kind == audit.KindCompletion && x.Protocol == "sftp" && e.StatusID == audit.StatusSuccess &&
				e.Traffic.BytesIn >= int64(len(big)) && e.Traffic.BytesIn < most && e.Traffic.BytesOut >= int64(len(big)) && e.Traffic.BytesOut < most {
				return true
			}
		}
		return false
	})
}

// An agent of an earlier version serves no SFTP, and its client hears what to do.
func TestSFTPEarlier(t *testing.T) {
	p := newSSHTest(t)
	p.block.earlier = true
	s := p.session(p.in())
	said, err := s.StderrPipe()
	must.OK(t, err)
	must.OK(t, s.RequestSubsystem("sftp"))
	if text, err := io.ReadAll(said); err != nil || !strings.Contains(string(text), sandbox.ErrEarlier.Error()) {
		t.Errorf("it says %q, %v", text, err)
	}
}

// Files and ports are off for a key that does not have them, and the answer says
// where that is written.
func TestOff(t *testing.T) {
	p := newSSHTest(t)
	k := p.keys()
	k[0].Allow = nil
	p.server.Use(k)
	c := p.in()
	ch, requests, err := c.OpenChannel("session", nil)
	must.OK(t, err)
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

// lister serves SFTP as far as a folder with the given names, and paths.
func lister(names ...string) func(net.Conn) {
	return func(c net.Conn) {
		listed := false
		for {
			head := make([]byte, 4)
			if _, err := io.ReadFull(c, head); err != nil {
				return
			}
			p := make([]byte, binary.BigEndian.Uint32(head))
			if _, err := io.ReadFull(c, p); err != nil {
				return
			}
			uint32s := func(b []byte, n ...uint32) []byte {
				for _, n := range n {
					b = binary.BigEndian.AppendUint32(b, n)
				}
				return b
			}
			list := func(names ...string) []byte {
				b := uint32s(append([]byte{104}, p[1:5]...), uint32(len(names)))
				for _, name := range names {
					b = append(uint32s(b, uint32(len(name))), name...)
					b = append(uint32s(b, 4), "long"...)
					b = uint32s(b, 1|4|8|1<<31, 0, 5, 0o644, 1, 2, 1) // size, permissions, times, and one more
					b = append(uint32s(b, 1), 'k')
					b = append(uint32s(b, 1), 'v')
				}
				return b
			}
			status := func(code uint32) []byte { return uint32s(append([]byte{101}, p[1:5]...), code, 0, 0) }
			var a []byte
			switch p[0] {
			case 1: // SSH_FXP_INIT
				a = uint32s([]byte{2}, 3)
			case 11: // SSH_FXP_OPENDIR
				a = append(uint32s(append([]byte{102}, p[1:5]...), 1), 'h')
			case 12: // SSH_FXP_READDIR
				if a = status(1); !listed {
					a = list(names...)
				}
				listed = true
			case 16, 19: // SSH_FXP_REALPATH, SSH_FXP_READLINK
				a = list("/some/where")
			case 17: // SSH_FXP_STAT, answered by what is too long
				a = make([]byte, maxPacket+1)
			default:
				a = status(0)
			}
			if _, err := c.Write(append(uint32s(nil, uint32(len(a))), a...)); err != nil {
				return
			}
		}
	}
}

// A folder's names that no folder has do not come to a client, whose own path they would
// leave, and are on record.
func TestSFTPNames(t *testing.T) {
	for what, names := range map[string][]string{
		"a path": {"a", "../../x"}, "one path": {"/x"}, "no name": {""}, "an end": {"x\x00y"}, "a long name": {strings.Repeat("x", 256)},
		"": {"a", "..", "b c", strings.Repeat("y", 255)},
	} {
		t.Run(what, func(t *testing.T) {
			p := newSSHTest(t)
			p.block.hostile = lister(names...)
			s := p.sftp(p.in())
			if at, err := s.Getwd(); err != nil || at != "/some/where" {
				t.Errorf("a path: %q, %v", at, err)
			}
			if to, err := s.ReadLink("x"); err != nil || to != "/some/where" {
				t.Errorf("a link: %q, %v", to, err)
			}
			list, err := s.ReadDir("/")
			if what == "" {
				if err != nil || len(list) != len(names)-1 { // the client drops ".."
					t.Errorf("%d names: %v", len(list), err)
				}
				_, err = s.Stat("/")
			}
			if err == nil {
				t.Fatal("it came")
			}
			p.await("a record", func() bool { return p.book.has(audit.KindCompletion, "sftp", errSFTP.Error()) })
		})
	}
}

// A session whose process ends is not on record as one that ended well.
func TestSFTPCutOff(t *testing.T) {
	p := newSSHTest(t)
	p.sftp(p.in())
	must.OK(t, p.server.ended(p.process, false))
	p.await("a record", func() bool { return p.book.has(audit.KindCompletion, "sftp", "the process that speaks SSH has ended") })
}
