package manager

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/archive"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/agent/wire"
)

// fakeAgent stands in an agent's place, as a root inside can make it: it takes
// any proof and answers every request with the same bytes, and then with more of
// them for ever, if there are any.
func fakeAgent(t *testing.T, head string, more []byte) channel.Options {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must.OK(t, err)
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			stop := context.AfterFunc(ctx, func() { c.Close() })
			all.Go(func() {
				defer stop()
				defer c.Close()
				c.Write(make([]byte, wire.ChallengeSize))
				io.ReadFull(c, make([]byte, ed25519.SignatureSize))
				asked, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				if asked.URL.Path == "/identity" { // it has none, as an earlier version
					io.WriteString(c, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
					return
				}
				io.WriteString(c, head)
				for len(more) > 0 {
					if _, err := c.Write(more); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { cancel(); l.Close(); all.Wait() })
	_, key, _ := ed25519.GenerateKey(nil)
	return channel.Options{Key: key, Dial: func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp4", l.Addr().String())
	}}
}

// Whatever a hostile agent says of files, a call ends, holds little, and what is
// returned is no more than was said to be checked.
func TestHostileFiles(t *testing.T) {
	body := func(s string) string {
		return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(s), s)
	}
	file := func(name string) string { return fmt.Sprintf(`{"name":%q,"type":"file","mode":"0644"}`, name) }
	const chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Sallyport-Error\r\n"
	zeros := make([]byte, 64<<10)
	for name, tt := range map[string]struct {
		head string
		more []byte
	}{
		"no JSON":                {body("\x1b]0;owned\a"), nil},
		"no file":                {body(`{}`), nil},
		"a path as a name":       {body(file("../../etc/passwd")), nil},
		"a kind of its own":      {body(`{"name":"x","type":"\u001b[31m"}`), nil},
		"a mode beyond":          {body(`{"name":"x","type":"file","mode":"7777777"}`), nil},
		"less than nothing":      {body(`{"name":"x","type":"file","size":-1,"mode":"0644"}`), nil},
		"names in no order":      {body(`{"files":[` + file("b") + `,` + file("a") + `],"more":true}`), nil},
		"a name twice":           {body(`{"files":[` + file("b") + `,` + file("b") + `]}`), nil},
		"more of nothing":        {body(`{"files":[],"more":true}`), nil},
		"too many names":         {body(`{"files":[` + strings.Repeat(file("a")+",", 2000) + file("b") + `]}`), nil},
		"an endless list":        {"HTTP/1.1 200 OK\r\n\r\n" + `{"files":[`, []byte(file("a") + ",")},
		"an endless event":       {"HTTP/1.1 200 OK\r\n\r\n" + `{"op":"`, []byte(strings.Repeat("x", 4096))},
		"an event of no kind":    {"HTTP/1.1 200 OK\r\n\r\n" + `{"op":"` + strings.Repeat("x", 100) + "\"}\n", nil},
		"an event of elsewhere":  {"HTTP/1.1 200 OK\r\n\r\n" + `{"op":"created","path":"/etc/passwd"}` + "\n", nil},
		"an endless refusal":     {"HTTP/1.1 403 No\r\n\r\n", zeros},
		"a refusal in colours":   {"HTTP/1.1 409 No\r\nContent-Length: 26\r\n\r\n" + `{"error":"\u001b]0;owned"}`, nil},
		"a body without a file":  {body("contents"), nil},
		"a file in colours":      {"HTTP/1.1 200 OK\r\nSallyport-File: \"{\\\"name\\\":\\\"/\x01\\\"}\"\r\nContent-Length: 0\r\n\r\n", nil},
		"contents without end":   {"HTTP/1.1 200 OK\r\nSallyport-File: \"" + strings.ReplaceAll(file("x"), `"`, `\"`) + "\"\r\n\r\n", zeros},
		"half of the contents":   {"HTTP/1.1 200 OK\r\nSallyport-File: \"" + strings.ReplaceAll(file("x"), `"`, `\"`) + "\"\r\nContent-Length: 100\r\n\r\nhalf", nil},
		"a trailer without end":  {chunked + "\r\n0\r\n", []byte("Sallyport-Error: xxxxxxxxxxxxxxxxxxxxxxxxxx\r\n")},
		"an error in colours":    {chunked + "\r\n0\r\nSallyport-Error: \"\\x1b]0;owned\"\r\n\r\n", nil},
		"an archive without end": {"HTTP/1.1 200 OK\r\n\r\n", zeros},
		"redirect":               {"HTTP/1.1 307 Go\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			h, dir := newFaultHost(), t.TempDir()
			m := openWith(t, h, dir, fakeAgent(t, tt.head, tt.more))
			defer m.Close()
			if _, _, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{}); err != nil {
				t.Fatal(err)
			}
			f := m.Files("a")
			to := t.TempDir()
			for what, do := range map[string]func(context.Context) error{
				"stat": func(ctx context.Context) error { _, err := f.Stat(ctx, "/x", false); return err },
				"list": func(ctx context.Context) error { _, _, err := f.List(ctx, "/x", ""); return err },
				"watch": func(ctx context.Context) error {
					return f.Watch(ctx, "/x", sandbox.WatchOptions{}, func(e sandbox.FileEvent) error { return nil })
				},
				"write": func(ctx context.Context) error {
					_, err := f.Write(ctx, "/x", strings.NewReader("x"), sandbox.WriteOptions{})
					return err
				},
				"read": func(ctx context.Context) error {
					_, r, err := f.Read(ctx, "/x")
					if err != nil {
						return err
					}
					defer r.Close()
					n, err := io.Copy(io.Discard, io.LimitReader(r, 1<<20))
					if err == nil && n == 1<<20 {
						err = errors.New("as much as was asked for")
					}
					return err
				},
				"download": func(ctx context.Context) error {
					r, err := f.Download(ctx, "/x", "x")
					if err != nil {
						return err
					}
					defer r.Close()
					p, err := archive.Unpack(ctx, to, r, archive.Options{Top: "x", Foreign: true, MaxBytes: 1 << 20, MaxEntries: 10})
					if err == nil && p.Entries == 0 {
						err = errors.New("an empty archive")
					}
					return err
				},
			} {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				begin := time.Now()
				err := do(ctx)
				cancel()
				runtime.ReadMemStats(&after)
				if err == nil {
					t.Errorf("%s: no error", what)
				} else if strings.ContainsAny(err.Error(), "\x1b\a") {
					t.Errorf("%s: the error is not escaped: %q", what, err)
				}
				if took := time.Since(begin); took > time.Minute {
					t.Errorf("%s took %v", what, took)
				}
				if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
					t.Errorf("%s: %d MiB allocated", what, n>>20)
				}
			}
		})
	}
}

// A list takes no more memory than what an agent can have, however many elements
// an answer of its bounded size holds.
func TestLongLists(t *testing.T) {
	many := strings.Repeat("{},", 1<<20) + "{}" // 3 MiB
	for what, tt := range map[string]struct {
		body string
		do   func(*Manager) error
	}{
		"files":    {`{"files":[` + many + `]}`, func(m *Manager) error { _, _, err := m.Files("a").List(t.Context(), "/", ""); return err }},
		"commands": {`[` + many + `]`, func(m *Manager) error { _, err := m.Commands(t.Context(), "a"); return err }},
	} {
		m := openWith(t, newFaultHost(), t.TempDir(), fakeAgent(t, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(tt.body), tt.body), nil))
		if _, _, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{}); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Start(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := tt.do(m)
		runtime.ReadMemStats(&after)
		if took := (after.TotalAlloc - before.TotalAlloc) >> 20; err == nil || !errors.Is(err, channel.ErrSilent) || took > 48 {
			t.Errorf("%s: %v, with %d MiB", what, err, took)
		}
		m.Close()
	}
}
