package agent

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

// packet is one of SFTP (draft-ietf-secsh-filexfer-02, section 3).
func packet(kind byte, id uint32, parts ...any) []byte {
	b := binary.BigEndian.AppendUint32([]byte{0, 0, 0, 0, kind}, id)
	for _, p := range parts {
		switch p := p.(type) {
		case string:
			b = append(binary.BigEndian.AppendUint32(b, uint32(len(p))), p...)
		case uint32:
			b = binary.BigEndian.AppendUint32(b, p)
		case uint64:
			b = binary.BigEndian.AppendUint64(b, p)
		}
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// No request is taken while the one before it has no answer, and the session ends with the
// connection.
func TestUnanswered(t *testing.T) {
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "read"), make([]byte, 1<<15), 0o600))
	client, server := net.Pipe()
	over := make(chan error, 1)
	go func() { over <- serveSFTP(server, "", dir) }()
	patience := time.Minute
	ask := func(p []byte) bool {
		_ = client.SetWriteDeadline(time.Now().Add(patience))
		_, err := client.Write(p)
		return err == nil
	}
	answer := func() []byte {
		t.Helper()
		_ = client.SetReadDeadline(time.Now().Add(time.Minute))
		head := make([]byte, 4)
		_, err := io.ReadFull(client, head)
		b := make([]byte, binary.BigEndian.Uint32(head))
		if err == nil {
			_, err = io.ReadFull(client, b)
		}
		must.OK(t, err)
		return b
	}
	const initialize, open, read, handle = 1, 3, 5, 102
	ask(packet(initialize, 3))
	answer()
	ask(packet(open, 1, filepath.Join(dir, "read"), uint32(1), uint32(0)))
	a := answer()
	if a[0] != handle {
		t.Fatalf("opening: %v", a)
	}
	asked := 0
	for asked < 100 && ask(packet(read, 11, string(a[9:]), uint64(0), uint32(1<<15))) {
		asked++
		patience = time.Second
	}
	if asked != 1 {
		t.Errorf("%d requests are taken with no answer to the first", asked)
	}
	_ = client.Close()
	select {
	case err := <-over:
		if err == nil {
			t.Error("it ended well")
		}
	case <-time.After(time.Minute):
		t.Error("the session goes on without its connection")
	}
}

// A file whose client has broken off is not put together to its end.
func TestKeepBroken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "it")
	must.OK(t, os.WriteFile(path, make([]byte, 10), 0o600))
	gone := false
	w := &upload{x: &sftpSession{broken: func() bool { return gone }}, path: path, tail: 10}
	must.OK(t, w.whole())
	if err := w.keep(); err != nil {
		t.Error(err)
	}
	gone = true
	if err := w.new.done(w.keep()); err == nil {
		t.Error("it ends well")
	}
}
