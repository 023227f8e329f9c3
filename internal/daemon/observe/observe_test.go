package observe

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/engine"
)

// Observe mode is on record when it begins, each hour, and when it ends: by itself
// or since the policy no longer has it.
func TestObserveModeIsOnRecord(t *testing.T) {
	now := time.Now()
	observed := func(names ...string) *engine.Policy {
		doc := policy.Document{Egress: []policy.EgressRule{{Name: "r", Destination: "a.example.com", Observe: now.Add(90 * time.Minute)}}}
		for _, name := range names {
			doc.Observe = append(doc.Observe, policy.Observation{
				Sandboxes: policy.Selector{Names: []string{name}}, Until: now.Add(10 * time.Hour)})
		}
		p, err := engine.Compile(t.Context(), doc, engine.Options{})
		must.OK(t, err)
		return p
	}
	current := observed("a", "b")
	var got []string
	w := &Watcher{Policy: func() *engine.Policy { return current }, Logger: slog.New(slog.DiscardHandler), Event: func(subject, _, state string) *audit.Event { return audit.Change(subject, state) }, Record: func(e *audit.Event) error {
		what, _, _ := strings.Cut(e.Message[strings.LastIndex(e.Message, ": ")+2:], " until")
		got = append(got, e.Unmapped.Sallyport.State+" "+what)
		if e.ClassUID != audit.ClassAPI || e.Policy.Version != current.Revision() || (e.SeverityID == audit.SeverityMedium) == strings.HasSuffix(e.Unmapped.Sallyport.State, "ended") {
			t.Errorf("got %+v", e)
		}
		return nil
	}}
	says := func(at time.Duration, want ...string) {
		t.Helper()
		got = nil
		w.look(now.Add(at))
		if diff := cmp.Diff(got, want); diff != "" {
			t.Errorf("after %v: %s", at, diff)
		}
	}
	says(0, "observe-begun sandbox a", "observe-begun sandbox b", "observe-begun rule r")
	says(time.Minute)
	says(time.Hour, "observing sandbox a", "observing sandbox b", "observing rule r")
	says(90*time.Minute, "observe-ended rule r")
	current = observed("a")
	says(91*time.Minute, "observe-ended sandbox b")
	says(2*time.Hour, "observing sandbox a")
	says(10*time.Hour, "observe-ended sandbox a")
	says(11 * time.Hour)
}
