package ipc_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sallyport/internal/ipc"
	"sallyport/internal/test/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	echo ipc.Method = 1 + iota
	refuse
	hang
	open
	huge
)

var errKnown = errors.New("known")

// pair returns two connected ends.
func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	a, f, err := ipc.Pair()
	must.OK(t, err)
	b, err = ipc.Inherited(f)
	must.OK(t, err)
	t.Cleanup(func() { _ = a.Close(); _ = b.Close() })
	return a, b
}

// serve runs a peer until the test ends; the channel has how it ended.
func serve(t *testing.T, c *net.UnixConn, o ipc.Options) (*ipc.Peer, <-chan error) {
	t.Helper()
	p := ipc.New(c, o)
	ended := make(chan error, 1)
	finished := make(chan struct{})
	go func() { defer close(finished); ended <- p.Serve() }()
	t.Cleanup(func() { _ = p.Close(); <-finished })
	return p, ended
}

type text struct{ Text string }

func methods(entered chan<- struct{}) map[ipc.Method]ipc.Handler {
	return map[ipc.Method]ipc.Handler{
		echo: ipc.Handle(func(_ context.Context, in text) (text, error) { return in, nil }),
		refuse: ipc.Handle(func(context.Context, ipc.None) (ipc.None, error) {
			return ipc.None{}, fmt.Errorf("no: %w", errKnown)
		}),
		hang: ipc.Handle(func(ctx context.Context, _ ipc.None) (ipc.None, error) {
			entered <- struct{}{}
			<-ctx.Done()
			return ipc.None{}, ctx.Err()
		}),
		open: ipc.HandleFile(func(_ context.Context, in text) (text, *os.File, error) {
			f, err := os.Open(in.Text)
			return in, f, err
		}),
		huge: ipc.Handle(func(context.Context, ipc.None) (text, error) { return text{strings.Repeat("x", 2<<20)}, nil }),
	}
}

func TestCalls(t *testing.T) {
	a, b := pair(t)
	o := ipc.Options{Methods: methods(nil), Errors: map[string]error{"known": errKnown}, Files: true}
	p, _ := serve(t, a, o)
	q, _ := serve(t, b, o)
	var group errgroup.Group
	for i := range 200 {
		for _, from := range []*ipc.Peer{p, q} {
			group.Go(func() error {
				want := text{fmt.Sprint(i)}
				var got text
				if err := from.Call(t.Context(), echo, want, &got); err != nil || got != want {
					return fmt.Errorf("got %v, %w, want %v", got, err, want)
				}
				return nil
			})
		}
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	err := p.Call(t.Context(), refuse, ipc.None{}, &ipc.None{})
	if !errors.Is(err, errKnown) || err.Error() != "no: known" {
		t.Errorf("a refusal is %v", err)
	}
	// A message that is too large is the caller's error, not the link's.
	if err := p.Call(t.Context(), huge, ipc.None{}, &text{}); err == nil || errors.Is(err, ipc.ErrClosed) {
		t.Errorf("a large answer is %v", err)
	}
	if err := p.Call(t.Context(), echo, text{strings.Repeat("x", 2<<20)}, &text{}); err == nil || errors.Is(err, ipc.ErrClosed) {
		t.Errorf("a large call is %v", err)
	}
	dir := t.TempDir()
	for i := range 5 {
		path := fmt.Sprintf("%s/%d", dir, i)
		must.OK(t, os.WriteFile(path, []byte(path), 0o600))
		group.Go(func() error {
			f, err := p.CallFile(t.Context(), open, text{path}, &text{})
			if err != nil {
				return err
			}
			defer f.Close()
			if got, err := io.ReadAll(f); err != nil || string(got) != path {
				return fmt.Errorf("the file of %s holds %q, %w", path, got, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

// When an end goes, what waits for it is told, and what it asked for is ended.
func TestEnd(t *testing.T) {
	a, b := pair(t)
	entered := make(chan struct{}, 1)
	p, _ := serve(t, a, ipc.Options{})
	_, ended := serve(t, b, ipc.Options{Methods: methods(entered)})
	called := make(chan error, 1)
	go func() { called <- p.Call(context.Background(), hang, ipc.None{}, &ipc.None{}) }()
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	givenUp := make(chan error, 1)
	go func() { givenUp <- p.Call(ctx, hang, ipc.None{}, &ipc.None{}) }()
	<-entered
	cancel()
	if err := <-givenUp; !errors.Is(err, context.Canceled) {
		t.Errorf("a call that is given up: %v", err)
	}
	_ = p.Close()
	if err := <-called; !errors.Is(err, ipc.ErrClosed) {
		t.Errorf("the call: %v", err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the other end: %v", err)
	}
	if err := p.Call(t.Context(), echo, text{}, &text{}); !errors.Is(err, ipc.ErrClosed) {
		t.Errorf("a call afterwards: %v", err)
	}
}

// frame is one as an attacker writes it.
func frame(version, kind, method, files byte, size uint32, id uint64, body string) []byte {
	b := []byte{version, kind, method, files}
	b = binary.BigEndian.AppendUint32(b, size)
	b = binary.BigEndian.AppendUint64(b, id)
	return append(b, body...)
}

func TestHostile(t *testing.T) {
	for name, bytes := range map[string][]byte{
		"another version":      frame(2, 1, byte(echo), 0, 2, 1, "{}"),
		"an unknown kind":      frame(1, 9, byte(echo), 0, 2, 1, "{}"),
		"an unknown method":    frame(1, 1, 200, 0, 2, 1, "{}"),
		"no method":            frame(1, 1, 0, 0, 2, 1, "{}"),
		"no id":                frame(1, 1, byte(echo), 0, 2, 0, "{}"),
		"a huge frame":         frame(1, 1, byte(echo), 0, 1<<31, 1, ""),
		"not JSON":             frame(1, 1, byte(echo), 0, 3, 1, "{{{"),
		"another type":         frame(1, 1, byte(echo), 0, 9, 1, `{"Text":1`+"}"),
		"deep nesting":         frame(1, 1, byte(echo), 0, 100000, 1, strings.Repeat("[", 100000)),
		"an answer to nobody":  frame(1, 2, 0, 0, 2, 7, "{}"),
		"a failure for nobody": frame(1, 3, 0, 0, 2, 7, "{}"),
		"a file promised":      frame(1, 1, byte(echo), 1, 2, 1, "{}"),
		"many files promised":  frame(1, 1, byte(echo), 255, 2, 1, "{}"),
		"half a header":        {1, 1, 1},
		"half a body":          frame(1, 1, byte(echo), 0, 100, 1, "{}"),
		"text":                 []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			_, ended := serve(t, a, ipc.Options{Methods: methods(nil)})
			// It answers what is in order before.
			if _, err := b.Write(frame(1, 1, byte(echo), 0, 14, 1, `{"Text":"yes"}`)); err != nil {
				t.Fatal(err)
			}
			answer := make([]byte, 16+14)
			if _, err := io.ReadFull(b, answer); err != nil || string(answer[16:]) != `{"Text":"yes"}` {
				t.Fatalf("the control: %q, %v", answer, err)
			}
			if _, err := b.Write(bytes); err != nil {
				t.Fatal(err)
			}
			_ = b.CloseWrite()
			select {
			case err := <-ended:
				if err == nil {
					t.Error("it took that")
				}
			case <-time.After(time.Minute):
				t.Error("it goes on")
			}
		})
	}
}

// A file that comes unasked is closed, and no more descriptors are open after
// many than before.
func TestUnasked(t *testing.T) {
	a, b := pair(t)
	_, ended := serve(t, a, ipc.Options{Methods: methods(nil)})
	before := descriptors(t)
	null, err := os.Open(os.DevNull)
	must.OK(t, err)
	defer null.Close()
	for range 50 {
		if _, _, err := b.WriteMsgUnix(frame(1, 1, byte(echo), 0, 2, 1, "{}"), unix.UnixRights(int(null.Fd())), nil); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(b, make([]byte, 16+len(`{"Text":""}`))); err != nil {
			t.Fatal(err)
		}
	}
	must.Soon(t, "no more descriptors than before, and null", func() bool { return descriptors(t) <= before+1 })
	_ = b.Close()
	<-ended
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	must.OK(t, err)
	return len(all)
}

// A side that calls without end waits for its answers.
func TestCallsBound(t *testing.T) {
	a, b := pair(t)
	var mu sync.Mutex
	running, most := 0, 0
	count := func(more int) (is int) {
		mu.Lock()
		defer mu.Unlock()
		running += more
		most = max(most, running)
		return running
	}
	release := make(chan struct{})
	_, ended := serve(t, a, ipc.Options{MaxCalls: 4, Methods: map[ipc.Method]ipc.Handler{
		echo: ipc.Handle(func(ctx context.Context, in text) (text, error) {
			count(1)
			defer count(-1)
			select {
			case <-release:
			case <-ctx.Done():
			}
			return in, nil
		}),
	}})
	for id := range uint64(100) {
		if _, err := b.Write(frame(1, 1, byte(echo), 0, 2, id+1, "{}")); err != nil {
			t.Fatal(err)
		}
	}
	must.Soon(t, "four calls", func() bool { return count(0) >= 4 })
	time.Sleep(100 * time.Millisecond) // for more of them
	close(release)
	if _, err := io.ReadFull(b, make([]byte, 100*(16+len(`{"Text":""}`)))); err != nil {
		t.Error(err)
	}
	_ = b.Close()
	<-ended
	if most != 4 {
		t.Errorf("%d calls at a time, want 4", most)
	}
}

// A side that does not read ends the link, and costs a bounded amount until then.
func TestSlow(t *testing.T) {
	a, b := pair(t)
	p, ended := serve(t, a, ipc.Options{Patience: 200 * time.Millisecond})
	for range 64 {
		go func() { _ = p.Call(context.Background(), echo, text{strings.Repeat("x", 900<<10)}, &text{}) }()
	}
	select {
	case err := <-ended:
		if err == nil {
			t.Error("it ended well")
		}
	case <-time.After(time.Minute):
		t.Error("it waits for ever")
	}
	_ = b
}

// calls reads frames by their description, until one breaks it: the texts that the
// calls of echo have by id, and whether all of them keep to it.
func calls(data []byte) (texts map[uint64][]string, good bool) {
	texts = map[uint64][]string{}
	good = true
	for len(data) > 0 {
		if len(data) < 16 || data[0] != 1 || data[1] != 1 || data[2] != byte(echo) || data[3] != 0 {
			return texts, false
		}
		size, id := binary.BigEndian.Uint32(data[4:]), binary.BigEndian.Uint64(data[8:])
		if data = data[16:]; id == 0 || uint64(size) > uint64(len(data)) {
			return texts, false
		}
		var in text
		if json.Unmarshal(data[:size], &in) == nil {
			texts[id] = append(texts[id], in.Text)
		} else {
			good = false // its handler says so, and others may go on meanwhile
		}
		data = data[size:]
	}
	return texts, good
}

// FuzzServe: whatever a peer sends, it gets answers to calls that it has made, one
// each; Serve ends with it, and well if it kept to the protocol.
func FuzzServe(f *testing.F) {
	f.Add(frame(1, 1, byte(echo), 0, 14, 1, `{"Text":"yes"}`))
	f.Add(append(frame(1, 1, byte(echo), 0, 2, 2, "{}"), frame(1, 1, byte(echo), 0, 13, 2, `{"Text":"no"}`)...))
	f.Add(append(frame(1, 1, byte(echo), 0, 4, 7, "null"), frame(1, 1, byte(echo), 0, 2, 8, "[]")...))
	f.Add(append(frame(1, 2, 0, 0, 2, 1, "{}"), frame(1, 3, 0, 0, 2, 2, "{}")...))
	f.Add(frame(1, 1, byte(echo), 0, 1<<20, 1, "{}"))
	f.Add(frame(1, 1, byte(echo), 1, 2, 1, "{}")[:17])
	f.Fuzz(func(t *testing.T, data []byte) {
		a, b := pair(t)
		_, ended := serve(t, a, ipc.Options{Methods: map[ipc.Method]ipc.Handler{
			echo: ipc.Handle(func(_ context.Context, in text) (text, error) { return in, nil }),
		}})
		heard := make(chan []byte, 1)
		go func() { all, _ := io.ReadAll(b); heard <- all }()
		_ = b.SetWriteDeadline(time.Now().Add(time.Minute))
		_, _ = b.Write(data)
		_ = b.CloseWrite()
		asked, good := calls(data)
		select {
		case err := <-ended:
			if good != (err == nil) {
				t.Errorf("%x ends in %v", data, err)
			}
		case <-time.After(time.Minute):
			t.Fatal("it goes on after the end")
		}
		for got := <-heard; len(got) >= 16; {
			if got[0] != 1 || got[1] != 2 || got[3] != 0 {
				t.Fatalf("answered %x", got)
			}
			size, id := binary.BigEndian.Uint32(got[4:]), binary.BigEndian.Uint64(got[8:])
			if got = got[16:]; int(size) > len(got) {
				break // being written when the link ended
			}
			var out text
			if err := json.Unmarshal(got[:size], &out); err != nil {
				t.Fatalf("answered %d by %q", id, got[:size])
			}
			i := slices.Index(asked[id], out.Text)
			if i < 0 {
				t.Fatalf("answered %d by %q, asked %q", id, out.Text, asked[id])
			}
			asked[id], got = slices.Delete(asked[id], i, i+1), got[size:]
		}
	})
}

func BenchmarkCall(b *testing.B) {
	here, f, err := ipc.Pair()
	must.OK(b, err)
	there, err := ipc.Inherited(f)
	must.OK(b, err)
	p, q := ipc.New(here, ipc.Options{}), ipc.New(there, ipc.Options{Methods: methods(nil)})
	done := make(chan struct{}, 2)
	go func() { _ = p.Serve(); done <- struct{}{} }()
	go func() { _ = q.Serve(); done <- struct{}{} }()
	b.SetParallelism(8)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			var out text
			if err := p.Call(context.Background(), echo, text{"openai-api-key"}, &out); err != nil {
				b.Error(err)
			}
		}
	})
	_ = p.Close()
	<-done
	<-done
}

// Calls have a bound of their own, which answers do not have.
func TestCallIsBounded(t *testing.T) {
	const most = 1 << 10
	answers := map[ipc.Method]ipc.Handler{
		echo: ipc.Handle(func(_ context.Context, in text) (text, error) { return text{in.Text + strings.Repeat("x", most)}, nil }),
	}
	long := text{strings.Repeat("x", most)}
	a, b := pair(t)
	_, ended := serve(t, a, ipc.Options{Methods: answers, MaxIn: most})
	caller, _ := serve(t, b, ipc.Options{MaxOut: most})
	var got text
	if err := caller.Call(t.Context(), echo, long, &got); err == nil || errors.Is(err, ipc.ErrClosed) {
		t.Errorf("a call that is too large to be sent: %v", err)
	}
	if err := caller.Call(t.Context(), echo, text{"short"}, &got); err != nil || len(got.Text) != most+5 {
		t.Errorf("a long answer: %d bytes, %v", len(got.Text), err)
	}
	_ = caller.Close()
	if err := <-ended; err != nil {
		t.Errorf("the link ended with %v", err)
	}
	a, b = pair(t)
	_, ended = serve(t, a, ipc.Options{Methods: answers, MaxIn: most})
	caller, _ = serve(t, b, ipc.Options{})
	if err := caller.Call(t.Context(), echo, long, &got); !errors.Is(err, ipc.ErrClosed) {
		t.Fatalf("a call that is too large: %v", err)
	}
	if err := <-ended; !errors.Is(err, ipc.ErrProtocol) {
		t.Errorf("the link ended with %v", err)
	}
}
