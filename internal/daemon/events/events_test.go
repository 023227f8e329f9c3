package events

import (
	"context"
	"slices"
	"testing"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
)

// A caller who reads the log from far back by many streams has one turn at a time, and
// whoever else reads waits for none of them.
func TestScansAreShared(t *testing.T) {
	dir := t.TempDir()
	log, err := auditlog.Open(dir, auditlog.Options{})
	must.OK(t, err)
	const all = scanTurn + 10
	events := make([]*audit.Event, all)
	for i := range events {
		events[i] = audit.Change("sandbox/a", "started")
	}
	for some := range slices.Chunk(events, 100) {
		must.OK(t, log.Append(t.Context(), some...))
	}
	must.OK(t, log.Close())
	// One of the tenant's streams has its turn, for as long as the test wants.
	held := &scanning{turn: make(chan struct{}, 1), users: 1}
	held.turn <- struct{}{}
	s := scans{of: map[string]*scanning{"tenant:acme": held}}
	const streams = 20
	read := make(chan int, streams)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range streams {
		go func() {
			from := uint64(1)
			found, _, _ := s.turn(ctx, "tenant:acme", dir, &from)
			read <- len(found)
		}()
	}
	for _, who := range []string{"tenant:beta", "unix:0", "key:1"} {
		from := uint64(1)
		found, more, err := s.turn(ctx, who, dir, &from)
		if err != nil || len(found) != scanTurn || !more || from != scanTurn+1 {
			t.Errorf("%s: %d events, more %v, then from %d: %v", who, len(found), more, from, err)
		}
	}
	if len(read) > 0 {
		t.Errorf("%d streams of the caller whose turn it was have read", len(read))
	}
	<-held.turn
	if n := <-read; n != scanTurn {
		t.Errorf("in its turn, a stream has %d events", n)
	}
	cancel()
	for range streams - 1 {
		<-read
	}
}
