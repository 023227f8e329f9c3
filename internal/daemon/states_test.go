package daemon

import (
	"os"
	"strings"
	"testing"

	"sallyport/internal/test/must"
)

// Each state of a policy's lifecycle events has its row in docs/operate/audit.md.
func TestStatesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/operate/audit.md")
	must.OK(t, err)
	rows := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) == 5 {
			for state := range strings.SplitSeq(cells[2], ",") {
				rows[strings.Trim(strings.TrimSpace(state), "`")] = true
			}
		}
	}
	want := []string{"revoked", "reset", "reloaded", "refused", "selected", "stale", "fresh", "observe-begun", "observing", "observe-ended"}
	for _, state := range states {
		want = append(want, state)
	}
	for _, state := range want {
		if !rows[state] {
			t.Errorf("%q has no row", state)
		}
	}
}
