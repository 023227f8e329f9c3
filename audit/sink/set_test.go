package sink_test

import (
	"context"
	"errors"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/audit/sink"
	"sallyport/internal/test/must"
)

// gaps are the events in the log that record gaps.
func (l *trail) gaps() (all []audit.Gap) {
	l.t.Helper()
	for e, err := range auditlog.Read(l.t.Context(), l.dir, auditlog.Query{Kind: audit.KindLifecycle}) {
		var damage *auditlog.DamageError
		if err != nil && !errors.As(err, &damage) {
			l.t.Fatal(err)
		}
		if e != nil && e.Unmapped.Sallyport.State == audit.StateGap {
			all = append(all, *e.Unmapped.Sallyport.Gap)
		}
	}
	return all
}

// A record that a receiver refuses for good goes to the dead letters, with the reason and
// a record of the gap; all others arrive.
func TestDeadLetters(t *testing.T) {
	for _, name := range []string{"splunk", "otlp", "elasticsearch", "https"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := receivers[name](t)
			l := newTrail(t, r)
			l.append(5, "good")
			l.append(1, poison) // the sixth
			l.append(20, "good")
			stop := l.start()
			must.Soon(t, "the gap's record", func() bool { return l.status().Cursor == 27 })
			l.append(1, poison) // alone
			must.Soon(t, "the second", func() bool { return l.status().Cursor == 29 })
			stop()
			l.append(1, poison) // alone, and first after a restart
			l.start()
			must.Soon(t, "the third", func() bool { return l.status().Cursor == 31 })
			missing := l.lines()
			for uid, line := range missing {
				if strings.Contains(line, poison) {
					delete(missing, uid)
				}
			}
			if len(missing) != 31-3 {
				t.Errorf("%d records are to arrive, want 28: %v", len(missing), missing)
			}
			arrived := map[string]bool{}
			for _, line := range r.read(t) {
				if uid := uidOf(line); missing[uid] == line {
					delete(missing, uid)
					arrived[line] = true
				} else if !arrived[line] {
					t.Errorf("a record that is not to arrive: %s", line)
				}
			}
			if len(missing) > 0 {
				t.Errorf("records that are missing: %v", missing)
			}
			gaps := l.gaps()
			if len(gaps) != 3 || gaps[0].First != 6 || gaps[0].Last != 6 || gaps[0].Count != 1 || gaps[1].First != 28 || gaps[2].First != 30 || gaps[0].Sink != "one" || gaps[0].Reason == "" {
				t.Errorf("gaps: %+v", gaps)
			}
			dead, err := os.ReadFile(filepath.Join(l.dir, "dead", "one.jsonl"))
			if err != nil || strings.Count(string(dead), poison) != 3 || !strings.Contains(string(dead), `"reason":"`) {
				t.Errorf("dead letters: %v %s", err, dead)
			}
			if s := l.status(); s.Refused != 1 || !s.Away.IsZero() {
				t.Errorf("%+v", s)
			}
		})
	}
}

// The record that a receiver is sent once more after a restart, since it refuses the next
// one, is the record of the log, whatever else has been read meanwhile.
func TestLastRecordAfterARestart(t *testing.T) {
	r := httpsReceiver(t)
	l, other := newTrail(t, r), newTrail(t, r)
	l.append(3, "good")
	other.append(10, strings.Repeat("of another log ", 100))
	stop := l.start()
	l.complete()
	stop()
	l.append(1, poison)
	next, end := iter.Pull2(other.read(t.Context(), 1, false))
	defer end()
	l.startAfter(func() { next() })
	must.Soon(t, "the gap's record", func() bool { return l.status().Cursor == 5 })
	want := l.lines()
	for _, line := range r.read(t) {
		if want[uidOf(line)] != line {
			t.Errorf("a record that is not in the log: %s", line)
		}
	}
}

// A record of a gap that is refused too makes no other one.
func TestRefusesGaps(t *testing.T) {
	r := httpsReceiver(t)
	r.also = audit.StateGap
	l := newTrail(t, r)
	l.append(3, "good")
	l.append(1, poison)
	l.append(3, "good")
	l.start()
	must.Soon(t, "the gap's record", func() bool { return l.status().Cursor == 8 && l.status().Refused == 2 })
	l.append(3, "good")
	must.Soon(t, "the rest", func() bool { return l.status().Cursor == 11 })
	if gaps := l.gaps(); len(gaps) != 1 {
		t.Errorf("gaps: %+v", gaps)
	}
}

// A batch that the indexers have not acknowledged is sent again.
func TestUnindexed(t *testing.T) {
	r := splunkReceiver(t)
	r.unindexed.Store(true)
	l := newTrail(t, r)
	l.append(5, "good")
	l.start()
	must.Soon(t, "attempts", func() bool { return l.status().Retries >= 2 })
	if s := l.status(); s.Cursor != 0 || s.Away.IsZero() || !strings.Contains(s.Answer, "acknowledge") {
		t.Errorf("%+v", s)
	}
	r.unindexed.Store(false)
	if copies := l.complete(); copies < 5 {
		t.Errorf("%d copies", copies)
	}
}

// A file that ends within a line, as a full disk leaves it, goes on with a line of its own.
func TestTornFile(t *testing.T) {
	r := fileReceiver(t)
	l := newTrail(t, r)
	l.append(5, "good")
	stop := l.start()
	l.complete()
	stop()
	f, err := os.OpenFile(r.config.Path, os.O_WRONLY|os.O_APPEND, 0)
	must.OK(t, err)
	if _, err := f.WriteString(`{"torn`); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	whole := r.read
	r.read = func(t *testing.T) []string {
		return slices.DeleteFunc(whole(t), func(line string) bool { return line == `{"torn` })
	}
	l.append(5, "good")
	l.start()
	l.complete()
}

// A receiver that refuses everything is away: nothing is given up.
func TestRefusesEverything(t *testing.T) {
	for _, name := range []string{"splunk", "otlp", "elasticsearch", "https"} {
		for _, fresh := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := receivers[name](t)
				l := newTrail(t, r)
				l.start()
				if !fresh {
					l.append(3, "good")
					must.Soon(t, "the first", func() bool { return l.status().Cursor == 3 })
				}
				r.refuse(400)
				l.append(40, "good")
				must.Soon(t, "failures", func() bool { return l.status().Retries >= 4 })
				if s := l.status(); s.Away.IsZero() || s.Refused > 0 || !strings.Contains(s.Answer, "400") {
					t.Errorf("%+v", s)
				}
				r.refuse(0)
				l.complete()
				if gaps := l.gaps(); len(gaps) > 0 {
					t.Errorf("gaps: %+v", gaps)
				}
			})
		}
	}
}

// Without its cursor, a sink sends the log again from the oldest record.
func TestLostCursor(t *testing.T) {
	l := newTrail(t, httpsReceiver(t))
	l.append(30, "good")
	stop := l.start()
	l.complete()
	stop()
	must.OK(t, os.RemoveAll(filepath.Join(l.dir, "sinks")))
	l.start()
	if copies := l.complete(); copies != 30 {
		t.Errorf("%d records were sent again, want 30", copies)
	}
}

// A cursor of another log is an error before anything is sent, and says what to do.
func TestOtherLog(t *testing.T) {
	l := newTrail(t, httpsReceiver(t))
	l.append(30, "good")
	stop := l.start()
	l.complete()
	stop()
	other := newTrail(t, l.receiver)
	prepare := func() error {
		o := other.options()
		o.Dir = filepath.Join(l.dir, "sinks")
		p, err := sink.NewSet(o).Prepare(t.Context(), []sink.Config{l.receiver.config})
		if err == nil {
			p.Discard()
		}
		return err
	}
	for _, n := range []int{0, 10, 30} { // none, too few, as many
		other.append(n, "of another log")
		err := prepare()
		var which *sink.ConfigError
		if !errors.Is(err, sink.ErrOtherLog) || !errors.As(err, &which) || which.Index != 0 || !strings.Contains(err.Error(), "one.json") {
			t.Errorf("%v", err)
		}
	}
	cursor := filepath.Join(l.dir, "sinks", "one.json")
	must.OK(t, os.WriteFile(cursor, []byte(`{"sequence":`), 0o600))
	if err := prepare(); err == nil || !strings.Contains(err.Error(), cursor) {
		t.Errorf("a cursor that is cut off: %v", err)
	}
}

// Records that the log loses before they are sent are a gap that is recorded.
func TestLogLosesRecords(t *testing.T) {
	r := httpsReceiver(t)
	l := newTrail(t, r)
	_ = l.log.Close()
	log, err := auditlog.Open(l.dir, auditlog.Options{SegmentSize: 20 << 10})
	must.OK(t, err)
	l.log = log
	t.Cleanup(func() { _ = log.Close() })
	l.append(1, "good")
	stop := l.start()
	must.Soon(t, "the first", func() bool { return l.status().Cursor == 1 })
	stop()
	for range 100 {
		l.append(5, strings.Repeat("x", 400))
	}
	segments, err := filepath.Glob(filepath.Join(l.dir, "0*.jsonl"))
	if err != nil || len(segments) < 4 {
		t.Fatalf("%q, %v", segments, err)
	}
	for _, f := range segments[:2] { // the first has what was sent
		must.OK(t, os.Remove(f))
	}
	l.start()
	must.Soon(t, "the gap", func() bool { return l.status().Cursor == 502 })
	gaps := l.gaps()
	if len(gaps) != 1 || gaps[0].First != 2 || gaps[0].Count != int(gaps[0].Last-gaps[0].First+1) || gaps[0].Last < 10 || l.status().Lost != uint64(gaps[0].Count) {
		t.Fatalf("gaps %+v, status %+v", gaps, l.status())
	}
	got := map[string]bool{}
	for _, line := range r.read(t) {
		got[uidOf(line)] = true
	}
	if want := 502 - gaps[0].Count; len(got) != want {
		t.Errorf("%d records arrived, want %d", len(got), want)
	}
}

// A sink that is too far behind holds the data path until it has caught up; the same one
// with drop-shipped-only does not.
func TestHold(t *testing.T) {
	for _, block := range []bool{true, false} {
		r := httpsReceiver(t)
		r.config.Bound, r.config.Block = 10<<10, block
		l := newTrail(t, r)
		r.refuse(503)
		l.append(100, "good")
		l.start()
		if held := l.set.Held() != ""; held != block {
			t.Errorf("held from the start: %v, want %v", held, block)
		}
		must.Soon(t, "the status", func() bool { return l.status().Full })
		if s := l.status(); s.Waiting != 100 || s.WaitingBytes < 20<<10 || s.WaitingBytes > 60<<10 {
			t.Errorf("%+v", s)
		}
		reason := func() string {
			if p := l.held.Load(); p != nil {
				return *p
			}
			return ""
		}
		if !block {
			r.refuse(0)
			l.complete()
			if l.held.Load() != nil {
				t.Errorf("held: %s", reason())
			}
			continue
		}
		must.Soon(t, "the hold", func() bool { return strings.Contains(reason(), "one") })
		if l.set.Held() != reason() {
			t.Errorf("Held says %q", l.set.Held())
		}
		r.refuse(0)
		must.Soon(t, "its end", func() bool { return reason() == "" })
		l.complete()
	}
}

// A hung sink delays no other.
func TestAlone(t *testing.T) {
	good, bad := httpsReceiver(t), httpsReceiver(t)
	l := newTrail(t, good)
	stuck := make(chan struct{})
	defer close(stuck)
	o := l.options()
	o.Secret = func(ctx context.Context, c sink.Config) (map[string]string, error) {
		if c.Name == "bad" {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return good.secret, nil
	}
	o.Hurry(1e6, 1e12)
	l.set = sink.NewSet(o)
	bad.config.Name, bad.config.Batch, bad.config.Bound = "bad", good.config.Batch, good.config.Bound
	plan, err := l.set.Prepare(t.Context(), []sink.Config{good.config, bad.config})
	must.OK(t, err)
	l.set.Use(plan)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { _ = l.set.Run(ctx); close(done) }()
	l.append(200, "good")
	l.complete()
	if s := l.set.Status()[1]; s.Cursor != 0 {
		t.Errorf("%+v", s)
	}
	if last, name := l.set.Shipped(); last != 0 || name != "bad" {
		t.Errorf("every sink has the records up to %d, says %s", last, name)
	}
	cancel()
	<-done
}

// A reload adds, changes and removes sinks. Each goes on from its own cursor.
func TestReload(t *testing.T) {
	first, second := httpsReceiver(t), httpsReceiver(t)
	l := newTrail(t, first)
	l.append(50, "good")
	l.start()
	l.complete()
	use := func(list ...sink.Config) {
		t.Helper()
		p, err := l.set.Prepare(t.Context(), list)
		must.OK(t, err)
		l.set.Use(p)
	}
	second.config.Name, second.config.Encoding, second.config.Batch, second.config.Bound = "one", "ocsf", first.config.Batch, first.config.Bound
	use(second.config) // the same name and another address
	l.append(10, "after the first reload")
	must.Soon(t, "the second", func() bool { return l.status().Cursor == 60 })
	if n := len(second.read(t)); n != 10 {
		t.Errorf("the second has %d records, want the 10 that are new", n)
	}
	// A former self that hangs is not overtaken.
	release := make(chan struct{})
	l.secret.Store(&release)
	l.append(1, "while the receiver hangs")
	must.Soon(t, "the question for the secret", func() bool { return l.asked.Load() })
	l.secret.Store(nil)
	use(first.config)
	before := len(first.read(t))
	l.append(1, "for the first")
	time.Sleep(50 * time.Millisecond) // in which nothing is to happen
	if n := len(first.read(t)); n != before {
		t.Errorf("the first was sent %d records while the second was not done", n-before)
	}
	close(release)
	must.Soon(t, "the end of the second", func() bool { return l.status().Cursor == 62 })
	use()
	l.append(10, "while there is none")
	bad := first.config
	bad.TLS.Roots = []byte("no PEM")
	if _, err := l.set.Prepare(t.Context(), []sink.Config{bad}); err == nil {
		t.Error("authorities that are no PEM are taken")
	}
	use(first.config)
	must.Soon(t, "the first again", func() bool { return l.status().Cursor == 72 })
	if n := len(first.read(t)); n != 62 {
		t.Errorf("the first has %d records, want 62", n)
	}
}

// A test sends one record, which counts for nothing, and shows the answer.
func TestTest(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(receivers)) {
		r := receivers[name](t)
		l := newTrail(t, r)
		l.append(1, "a test")
		l.start()
		l.complete()
		for rec, err := range l.read(t.Context(), 1, false) {
			must.OK(t, err)
			if answer, err := l.set.Test(t.Context(), "one", rec); err != nil || answer == "" {
				t.Errorf("%s: %q, %v", name, answer, err)
			}
		}
		if r.refuse != nil {
			r.refuse(403)
			for rec := range l.read(t.Context(), 1, false) {
				if answer, err := l.set.Test(t.Context(), "one", rec); err == nil {
					t.Errorf("%s: it refuses, and %q", name, answer)
				}
			}
		}
	}
	l := newTrail(t, fileReceiver(t))
	l.start()
	if _, err := l.set.Test(t.Context(), "two", auditlog.Entry{}); !errors.Is(err, sink.ErrNoSink) {
		t.Errorf("%v", err)
	}
}

// The last records leave while the daemon ends, however long batches wait.
func TestDrain(t *testing.T) {
	r := httpsReceiver(t)
	l := newTrail(t, r)
	r.config.Batch.Wait = 3600e9
	l.start()
	l.append(3, "good")
	l.set.Drain(t.Context(), 3)
	if got := len(r.read(t)); got != 3 {
		t.Errorf("%d records arrived, want 3", got)
	}
}
