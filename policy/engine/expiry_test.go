package engine_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/engine"
)

// A follower of a policy hears of the end of observe mode as of a change: requests that go on
// by it are to be judged again.
func TestWatchTellsOfTheEndOfObserveMode(t *testing.T) {
	until := time.Now().Add(time.Hour)
	var ahead atomic.Int64
	doc := policy.Document{
		Egress:  []policy.EgressRule{{Name: "a", Destination: "a.example.com", Observe: until}},
		Observe: []policy.Observation{{Sandboxes: policy.Selector{Names: []string{"a"}}, Until: until.Add(time.Hour)}},
	}
	p, err := engine.Compile(t.Context(), doc, engine.Options{Clock: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
	must.OK(t, err)
	e := new(engine.Engine) // which has no policy yet
	told := make(chan struct{}, 10)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); e.WatchExpiry(ctx) }()
	defer func() { cancel(); <-done }()
	e.OnSwap(func() { told <- struct{}{} })
	e.Swap(p)
	<-told
	silent := func(when string) {
		t.Helper()
		select {
		case <-told:
			t.Errorf("told %s", when)
		case <-time.After(700 * time.Millisecond):
		}
	}
	silent("of nothing")
	for _, by := range []time.Duration{time.Hour + time.Minute, 2*time.Hour + time.Minute} {
		ahead.Store(int64(by))
		select {
		case <-told:
		case <-time.After(time.Minute):
			t.Fatalf("not told of what ended at %v", by)
		}
	}
	silent("twice")
}
