package ssh

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"sallyport/audit"
	"sallyport/sandbox"
)

func (p *sshTest) sftp(c *ssh.Client) *sftp.Client {
	p.t.Helper()
	s, err := sftp.NewClient(c, sftp.UseConcurrentWrites(true), sftp.UseConcurrentReads(true))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = s.Close() })
	return s
}

// What a client and the sandbox's agent say to each other passes as it is, and is counted.
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
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadFrom(bytes.NewReader(big)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	if err := s.RequestSubsystem("sftp"); err != nil {
		t.Fatal(err)
	}
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
