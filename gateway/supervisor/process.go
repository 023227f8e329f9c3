package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sallyport/audit/auditlog"
	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
	"sallyport/internal/jail"
	"sallyport/internal/supervise"
)

// spec returns how the next worker is started, and hands the log over to it.
func (s *Supervisor) spec() (spec jail.Spec, err error) {
	s.restoreSockets()
	s.next = workerapi.StartRequest{
		Certificate: s.o.Listeners.Certificate, Key: s.o.Listeners.Key,
		Policy: s.revision, SegmentSize: s.o.SegmentSize, Cluster: s.o.Cluster, Node: s.o.Node, Found: s.o.Found, Level: level(s.o.Logger),
	}
	add := func(name string, f *os.File, ferr error) {
		if ferr != nil {
			err = errors.Join(err, fmt.Errorf("passing %s on: %w", name, ferr))
			return
		}
		spec.Files, s.next.Files = append(spec.Files, f), append(s.next.Files, name)
	}
	for name, l := range s.o.Listeners.tcp() {
		f, err := l.File()
		add(name, f, err)
	}
	if l := s.o.Listeners.DNS; l != nil {
		f, err := l.File()
		add(workerapi.FileDNS, f, err)
	}
	if err != nil {
		return spec, err
	}
	h, err := s.o.AuditLog.handOver()
	if h.File != nil {
		add(workerapi.FileLog, h.File, nil)
	}
	if err == nil && s.o.Limits != nil {
		err = s.o.Limits.recount(context.Background(), h.Next, s.limited())
	}
	if err != nil {
		return spec, errors.Join(err, s.o.AuditLog.takeBack())
	}
	s.next.Next, s.next.Size, s.used = h.Next, h.Size, true
	spec.Args, spec.Env, spec.Root, spec.IDs = s.o.Args, s.environment(), s.o.View.Dir(), s.o.IDs
	spec.FileSize = uint64(auditlog.MaxSegment(s.o.SegmentSize)) // of files it has segments of the log only
	return spec, nil
}

// initWorker gives a worker everything that it works with.
func (s *Supervisor) initWorker(ctx context.Context, p *supervise.Process) error {
	if _, hard := memoryLimits(); hard > 0 {
		if err := jail.LimitMemory(p.PID(), hard); err != nil {
			s.o.Logger.Warn("the memory of the gateway's process is bounded by Go's runtime alone: no control group for it", "error", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	err := p.Peer.Call(ctx, workerapi.MethodStart, s.next, &p.State)
	if err == nil && s.o.Limits != nil {
		err = s.o.Limits.restore(ctx, p.Peer)
	}
	return err
}

// serve has a worker accept connections.
func (s *Supervisor) serve(ctx context.Context, p *supervise.Process) error {
	ctx, cancel := context.WithTimeout(ctx, workerapi.AnswerWithin)
	defer cancel()
	for _, t := range s.placeholders() {
		if err := p.Peer.Call(ctx, workerapi.MethodTables, t, &ipc.None{}); err != nil {
			return err
		}
	}
	if err := p.Peer.Call(ctx, workerapi.MethodServe, s.tables(), &ipc.None{}); err != nil {
		return err
	}
	s.o.AuditLog.setWorker(p.Peer, p.End)
	s.o.Logger.Info("the gateway's process is up", "pid", p.PID(), "uid", p.State.UID, "own_root", p.State.Root, "landlock", p.State.Landlock)
	return nil
}

// cleanup takes back what a worker had.
func (s *Supervisor) cleanup(_ *supervise.Process, last bool) error {
	if !last { // else the listeners are closed
		s.restoreSockets() // at once, so that connections wait in them and are not refused
	}
	if s.o.Approvals != nil {
		s.o.Approvals.WithdrawHeld()
	}
	if err := s.o.AuditLog.takeBack(); err != nil {
		return fmt.Errorf("opening the audit log again: %w", err)
	}
	return nil
}

// environment is the worker's whole environment.
func (s *Supervisor) environment() []string {
	env := []string{
		// RFC 8441 in golang.org/x/net/http2; and no control group's file is
		// watched, which would be a descriptor more.
		"GODEBUG=http2xconnect=1,containermaxprocs=0,updatemaxprocs=0",
		fmt.Sprintf("GOMAXPROCS=%d", runtime.GOMAXPROCS(0)),
	}
	if v := os.Getenv("GOGC"); v != "" {
		env = append(env, "GOGC="+v)
	}
	if soft, _ := memoryLimits(); soft > 0 {
		env = append(env, fmt.Sprintf("GOMEMLIMIT=%d", soft))
	}
	if os.Geteuid() != 0 {
		env = append(env, workerapi.ViewVariable+"="+s.o.View.Dir(), workerapi.ReadVariable+"="+strings.Join(rootFiles(s.document), string(os.PathListSeparator)))
	}
	return env
}

// leastMemory is the worker's memory on a small machine, in bytes.
const leastMemory = 1 << 30

// memoryLimits are the worker's, in bytes: soft is Go's (GOMEMLIMIT), near which it
// collects garbage harder, hard the kernel's, a quarter more. GOMEMLIMIT in the daemon's
// environment sets soft; off sets neither. Default: hard is a quarter of the machine's
// memory.
func memoryLimits() (soft, hard int64) {
	if os.Getenv("GOMEMLIMIT") != "" {
		soft = debug.SetMemoryLimit(-1) // as the runtime has read it
		if soft == math.MaxInt64 {
			return 0, 0
		}
		return soft, soft + soft/4
	}
	var info unix.Sysinfo_t
	_ = unix.Sysinfo(&info) // cannot fail with a good pointer
	hard = max(leastMemory, int64(info.Totalram)*int64(info.Unit)/4)
	return hard / 5 * 4, hard
}

func level(l *slog.Logger) int {
	if l.Enabled(context.Background(), slog.LevelDebug) {
		return int(slog.LevelDebug)
	}
	return int(slog.LevelInfo)
}

// relayLog logs a line that the worker wrote to its standard error: a record of its log,
// or anything else.
func (s *Supervisor) relayLog(line []byte) {
	var record map[string]any
	if err := json.Unmarshal(line, &record); err != nil {
		s.o.Logger.Warn("gateway", "said", escapeDEL(string(line)))
		return
	}
	var at slog.Level
	text, _ := record["level"].(string)
	_ = at.UnmarshalText([]byte(text)) // what is no level is Info
	message, _ := record["msg"].(string)
	for _, k := range []string{"level", "msg", "time"} {
		delete(record, k)
	}
	attrs := make([]slog.Attr, 0, len(record))
	for _, k := range slices.Sorted(maps.Keys(record)) {
		attrs = append(attrs, slog.Any(escapeDEL(k), logValue(record[k])))
	}
	s.o.Logger.LogAttrs(context.Background(), at, escapeDEL(message), attrs...)
}

// logValue is a value of a record as text or a number.
func logValue(v any) any {
	switch v := v.(type) {
	case string:
		return escapeDEL(v)
	case float64, bool, nil:
		return v
	}
	text, err := json.Marshal(v)
	if err != nil {
		return "?"
	}
	return escapeDEL(string(text))
}

// escapeDEL escapes DEL, the only control character that slog's text handler does not.
func escapeDEL(s string) string { return strings.ReplaceAll(s, "\x7f", `\x7f`) }
