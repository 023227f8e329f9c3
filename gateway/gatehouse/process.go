package gatehouse

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"sallyport/audit"
	"sallyport/internal/cell"
	"sallyport/internal/link"
)

// process is one on the way to serving.
type process struct {
	warden *Warden
	cell   *cell.Process
	peer   *link.Peer
	start  start
	served chan error // how the link ended
	heard  chan struct{}
}

// spawn makes a process; the log is handed over to it.
func (w *Warden) spawn() (_ *process, err error) {
	var files []*os.File
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	w.mend()
	here, there, err := link.Pair()
	if err != nil {
		return nil, err
	}
	files = append(files, there)
	s := start{
		Certificate: w.o.Listeners.Certificate, Key: w.o.Listeners.Key,
		Policy: w.revision, SegmentSize: w.o.SegmentSize, Level: level(w.o.Logger),
	}
	add := func(name string, f *os.File, err error) error {
		if err != nil {
			return fmt.Errorf("passing %s on: %w", name, err)
		}
		files, s.Files = append(files, f), append(s.Files, name)
		return nil
	}
	for name, l := range map[string]*net.TCPListener{
		fileTransparent: w.o.Listeners.Transparent, fileExplicit: w.o.Listeners.Explicit, fileDNSTCP: w.o.Listeners.DNSTCP,
		fileInbound: w.o.Listeners.Inbound,
	} {
		if l != nil {
			f, ferr := l.File()
			err = errors.Join(err, add(name, f, ferr))
		}
	}
	if l := w.o.Listeners.DNS; l != nil {
		f, ferr := l.File()
		err = errors.Join(err, add(fileDNS, f, ferr))
	}
	r, stderr, perr := os.Pipe()
	if err = errors.Join(err, perr); err != nil {
		return nil, errors.Join(err, here.Close())
	}
	defer stderr.Close()
	h, err := w.o.Trail.handOver()
	if err != nil {
		return nil, errors.Join(err, here.Close(), r.Close(), w.o.Trail.takeBack())
	}
	if w.o.Ledger != nil {
		if err := w.o.Ledger.recount(context.Background(), h.Next, w.limited()); err != nil {
			if h.File != nil {
				_ = h.File.Close()
			}
			return nil, errors.Join(err, here.Close(), r.Close(), w.o.Trail.takeBack())
		}
	}
	s.Next, s.Size = h.Next, h.Size
	if h.File != nil {
		_ = add(fileLog, h.File, nil)
	}
	p := &process{warden: w, start: s, served: make(chan error, 1), heard: make(chan struct{})}
	w.soiled = true
	p.cell, err = cell.Start(cell.Spec{
		Args: w.o.Args, Env: w.environment(), Files: files, Stderr: stderr, Root: w.o.View.Dir(), IDs: w.o.IDs,
		FileSize: uint64(audit.MaxSegment(w.o.SegmentSize)), // of files it has segments of the log only
	})
	if err != nil {
		return nil, errors.Join(err, here.Close(), r.Close(), w.o.Trail.takeBack())
	}
	go p.hear(r)
	p.peer = link.New(here, w.link())
	go func() { p.served <- p.peer.Serve() }()
	return p, nil
}

// environment is all that the process has of one.
func (w *Warden) environment() []string {
	env := []string{
		// RFC 8441 in golang.org/x/net/http2; and no control group's file is
		// watched, which would be a descriptor more.
		"GODEBUG=http2xconnect=1,containermaxprocs=0,updatemaxprocs=0",
		fmt.Sprintf("GOMAXPROCS=%d", runtime.GOMAXPROCS(0)),
	}
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		if v := os.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	if os.Geteuid() != 0 {
		env = append(env, viewVariable+"="+w.o.View.Dir(), readVariable+"="+strings.Join(roots(w.document), string(os.PathListSeparator)))
	}
	return env
}

func level(l *slog.Logger) int {
	if l.Enabled(context.Background(), slog.LevelDebug) {
		return int(slog.LevelDebug)
	}
	return int(slog.LevelInfo)
}

// abort ends a process that did not come to serve.
func (p *process) abort(err error) error {
	_ = p.peer.Close()
	if werr := p.wait(); werr != nil && errors.Is(err, link.ErrClosed) {
		err = werr // says more
	}
	return errors.Join(err, p.warden.o.Trail.takeBack())
}

// endWithin is how long a process may go on after its link has ended.
const endWithin = 5 * time.Second

// wait returns how a process has ended, when it has. It ends when its link does.
func (p *process) wait() error {
	var lerr error
	linked := true
	select {
	case <-p.cell.Done():
	case lerr = <-p.served:
		linked = false
		select {
		case <-p.cell.Done():
		case <-time.After(endWithin):
			p.cell.Kill()
		}
	}
	err := p.cell.Wait()
	_ = p.peer.Close()
	if linked {
		lerr = <-p.served
	}
	<-p.heard
	switch {
	case errors.Is(lerr, link.ErrProtocol):
		return errors.Join(lerr, err)
	case err == nil:
		return errors.New("it ended by itself")
	}
	return err
}

// Bounds of what a process may say on its standard error.
const (
	maxSaid  = 64 << 10 // bytes of a line
	saidRate = 100      // lines a second in the long run
	saidMost = 2000     // and at once: a crash's stacks
)

// hear passes on what a process logs, or says as it crashes.
func (p *process) hear(r *os.File) {
	defer close(p.heard)
	defer r.Close()
	limit, dropped := rate.NewLimiter(saidRate, saidMost), 0
	lines := bufio.NewReaderSize(r, maxSaid)
	for {
		line, cut, err := lines.ReadLine()
		if cut {
			line = bytes.Clone(line)
		}
		for cut && err == nil {
			_, cut, err = lines.ReadLine() // the rest of a line that is too long
		}
		if err != nil {
			break
		}
		if !limit.Allow() {
			dropped++
			continue
		}
		p.warden.repeat(line)
	}
	if dropped > 0 {
		p.warden.o.Logger.Warn("the gateway's process said too much", "lines", dropped)
	}
}

// repeat says a line again: a record of its log, or anything else.
func (w *Warden) repeat(line []byte) {
	var record map[string]any
	if err := json.Unmarshal(line, &record); err != nil {
		w.o.Logger.Warn("gateway", "said", undeleted(string(line)))
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
		attrs = append(attrs, slog.Any(undeleted(k), said(record[k])))
	}
	w.o.Logger.LogAttrs(context.Background(), at, undeleted(message), attrs...)
}

// said is a value of a record as the log takes it: text or a number.
func said(v any) any {
	switch v := v.(type) {
	case string:
		return undeleted(v)
	case float64, bool, nil:
		return v
	}
	text, err := json.Marshal(v)
	if err != nil {
		return "?"
	}
	return undeleted(string(text))
}

// undeleted spells the control character DEL out, the only one that slog's text
// handler writes as it is.
func undeleted(s string) string { return strings.ReplaceAll(s, "\x7f", `\x7f`) }
