package agent

import (
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
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

// A client whose first request takes long has a bounded number of them taken meanwhile,
// and its session ends with the connection.
func TestUnanswered(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "read"), make([]byte, 1<<15), 0o600); err != nil {
		t.Fatal(err)
	}
	client, server := net.Pipe()
	over := make(chan error, 1)
	go func() { over <- serveSFTP(server, "", dir) }()
	ask := func(p []byte) bool {
		_ = client.SetWriteDeadline(time.Now().Add(time.Second))
		_, err := client.Write(p)
		return err == nil
	}
	answer := func() []byte {
		t.Helper()
		_ = client.SetReadDeadline(time.Now().Add(10 * time.Second))
		b := make([]byte, 1<<16)
		at, rest := 0, packets{}
		for {
			n, err := client.Read(b[at:])
			if err != nil {
				t.Fatal(err)
			}
			if at += n; rest.pass(b[at-n:at]) > 0 {
				return b[4:at]
			}
		}
	}
	const initialize, open, read, write, handle = 1, 3, 5, 6, 102
	ask(packet(initialize, 3))
	answer()
	var handles []string
	for i, flags := range []uint32{1, 2 | 8 | 16} { // to read; to write, made and emptied
		ask(packet(open, uint32(i), filepath.Join(dir, []string{"read", "written"}[i]), flags, uint32(0)))
		a := answer()
		if a[0] != handle {
			t.Fatalf("opening: %v", a)
		}
		handles = append(handles, string(a[9:]))
	}
	ask(packet(write, 10, handles[1], uint64(1<<40), "x")) // far beyond what has come
	asked := 1
	for asked < 4*maxUnanswered && ask(packet(read, 11, handles[0], uint64(0), uint32(1<<15))) {
		asked++
	}
	if asked != maxUnanswered {
		t.Errorf("%d requests are taken with no answer to the first", asked)
	}
	_ = client.Close()
	select {
	case err := <-over:
		if err == nil {
			t.Error("it ended well")
		}
	case <-time.After(20 * time.Second):
		t.Error("the session goes on without its connection")
	}
}

// A part whose turn does not come is a jump, however many others come before it.
func TestJump(t *testing.T) {
	t.Parallel()
	w := &turn{moved: make(chan struct{})}
	over := make(chan bool, 1)
	go func() { is := w.wait(1 << 40); w.mu.Unlock(); over <- !is }()
	for deadline := time.After(4 * jumpPauses * pause); ; time.Sleep(time.Millisecond) {
		select {
		case jump := <-over:
			if !jump {
				t.Error("its turn has come")
			}
			return
		case <-deadline:
			t.Fatal("it waits as long as others come")
		default:
		}
		w.mu.Lock()
		w.move(w.at+1, nil)
		w.mu.Unlock()
	}
}

// A file whose client has broken off is not put together to its end.
func TestKeepBroken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "it")
	if err := os.WriteFile(path, make([]byte, 10), 0o600); err != nil {
		t.Fatal(err)
	}
	gone := false
	w := &upload{x: &sftpSession{broken: func() bool { return gone }}, path: path, tail: 10}
	if err := w.whole(); err != nil {
		t.Fatal(err)
	}
	if err := w.keep(); err != nil {
		t.Error(err)
	}
	gone = true
	if err := w.new.done(w.keep()); err == nil {
		t.Error("it ends well")
	}
}
