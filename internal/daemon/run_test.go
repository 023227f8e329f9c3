package daemon

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/internal/config"
	"sallyport/internal/test/must"
)

// The watchdog is fed while the daemon answers on its socket, and starves when it
// does not.
func TestWatchdogStarves(t *testing.T) {
	dir := t.TempDir()
	to, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	must.OK(t, err)
	defer to.Close()
	t.Setenv("NOTIFY_SOCKET", filepath.Join(dir, "notify"))
	t.Setenv("WATCHDOG_USEC", "300000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))

	d := &daemon{cfg: &config.Config{RunDir: dir}, log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	l, err := net.Listen("unix", d.cfg.Socket())
	must.OK(t, err)
	var stuck atomic.Bool
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if stuck.Load() {
			<-r.Context().Done()
		}
		_, _ = io.WriteString(w, "{}")
	})}
	go server.Serve(l)
	defer server.Close()

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- d.watchdog(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	told := func(within time.Duration) string {
		buf := make([]byte, 100)
		_ = to.SetReadDeadline(time.Now().Add(within))
		n, _ := to.Read(buf)
		return string(buf[:n])
	}
	for range 3 {
		if got := told(time.Minute); got != "WATCHDOG=1" {
			t.Fatalf("systemd was told %q", got)
		}
	}
	stuck.Store(true)
	// Answers to earlier questions may still come. A watchdog that goes on tells each 100 ms.
	must.Soon(t, "silence of a daemon that does not answer", func() bool { return told(700*time.Millisecond) == "" })
}
