package ocsf

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"sallyport/audit"
)

var stored = sync.OnceValues(func() (*Schema, error) { return Load(audit.SchemaVersion) })

// Check fails the test for each event that is not in the form in which the log stores it.
func Check(t testing.TB, events ...*audit.Event) {
	t.Helper()
	for _, e := range events {
		if err := check(e); err != nil {
			t.Error(err)
		}
	}
}

// Must panics where Check fails a test, for what stands in for a log and knows no test.
func Must(events ...*audit.Event) {
	for _, e := range events {
		if err := check(e); err != nil {
			panic(err)
		}
	}
}

func check(e *audit.Event) error {
	s, err := stored()
	if err != nil {
		return err
	}
	b, err := json.Marshal(e)
	if err == nil {
		err = s.Validate(b)
	}
	if err != nil {
		return fmt.Errorf("an event is not OCSF %s: %w\n%s", audit.SchemaVersion, err, b)
	}
	return nil
}
