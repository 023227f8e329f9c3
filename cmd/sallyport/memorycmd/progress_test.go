package memorycmd

import (
	"strings"
	"testing"
	"time"

	"sallyport/memory/keeper"
)

func TestProgress(t *testing.T) {
	for _, tt := range []struct {
		name     string
		terminal bool
		after    []time.Duration
		want     string
	}{
		{"what is done at once says nothing", false, []time.Duration{0, 999 * time.Millisecond}, ""},
		{"a line for each second", false, []time.Duration{0, time.Second, 1500 * time.Millisecond, 2 * time.Second}, "1 of 4 files indexed\n3 of 4 files indexed\n"},
		{"a terminal, at once", true, []time.Duration{0, 50 * time.Millisecond, 100 * time.Millisecond}, "\r0 of 3 files indexed\x1b[K\r2 of 3 files indexed\x1b[K\r\x1b[K"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			began := time.Now()
			now := began
			p := &progress{out: &out, terminal: tt.terminal, now: func() time.Time { return now }, last: began}
			for done, after := range tt.after {
				now = began.Add(after)
				p.step(keeper.Step{Done: done, Total: len(tt.after), What: keeper.FilesIndexed})
			}
			p.end()
			if out.String() != tt.want {
				t.Errorf("got %q, want %q", out.String(), tt.want)
			}
		})
	}
}
