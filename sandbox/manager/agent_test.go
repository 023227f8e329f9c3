package manager

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"sallyport/sandbox"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/agent/wire"
)

// An agent's error about a port is escaped and in this package's words, and bytes that are
// carried are use.
func TestConnect(t *testing.T) {
	said := func(status, text string) string {
		return fmt.Sprintf("HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s", status, len(text), text)
	}
	const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + wire.PortProtocol + "\r\n\r\n"
	for what, tt := range map[string]struct {
		head string
		want error
	}{
		"nobody listens":     {said("502 Bad Gateway", `{"error":"nothing \u001b]0;owned\u0007listens"}`), sandbox.ErrNoPort},
		"too many":           {said("429 Too Many Requests", `{"error":"\u001b[1m64"}`), channel.ErrBusy},
		"no port":            {said("400 Bad Request", `{"error":"\u001b[1mno"}`), sandbox.ErrBadSpec},
		"an earlier version": {said("404 Not Found", "404 page not found\n"), sandbox.ErrEarlier},
		"something else":     {said("200 OK", "{}"), channel.ErrSilent},
		"a port":             {switching + "hello", nil},
	} {
		m := openWith(t, newFaultHost(), t.TempDir(), fakeAgent(t, tt.head, nil))
		if _, _, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{}); err != nil {
			t.Fatal(err)
		}
		c, err := m.Connect(t.Context(), "a", "localhost", 8000)
		if !errors.Is(err, tt.want) || err != nil && strings.ContainsAny(err.Error(), "\x1b\a") {
			t.Errorf("%s: got %q, want %v", what, err, tt.want)
		}
		if err == nil {
			before := m.known("a").used.Load()
			if got, err := io.ReadAll(c); string(got) != "hello" {
				t.Errorf("%s: %q, %v", what, got, err)
			}
			if m.known("a").used.Load() == before {
				t.Error("what is carried is no use")
			}
			_ = c.Close()
		}
		m.Close()
	}
	m := openWith(t, newFaultHost(), t.TempDir(), fakeAgent(t, switching, nil))
	defer m.Close()
	if _, _, err := m.GetOrCreate(sandbox.ForOwner(t.Context(), "acme"), "b", sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Connect(sandbox.ForOwner(t.Context(), "other"), "b", "localhost", 8000); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("of another owner: %v", err)
	}
}
