package auditlog_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"sallyport/audit/auditlog"
)

// A log that ends before a number that it had reached goes on after it, and says so once.
func TestAfter(t *testing.T) {
	for _, tt := range []struct {
		events      int
		after, next uint64
		says        string
	}{
		{3, 0, 4, ""},
		{3, 3, 4, ""},
		{3, 10, 12, "events 4 to 10 are missing"},
		{0, 5, 7, "events 1 to 5 are missing"},
	} {
		t.Run(fmt.Sprintf("%d after %d", tt.events, tt.after), func(t *testing.T) {
			dir := t.TempDir()
			l := open(t, dir, auditlog.Options{})
			for range tt.events {
				appendAll(t, l, "before")
			}
			l.Close()
			for range 2 { // the second time there is nothing to say
				l = open(t, dir, auditlog.Options{After: tt.after})
				h, err := l.HandOver()
				if err != nil || h.Next != tt.next || h.File == nil && tt.events > 0 {
					t.Errorf("handed over at %d, %v, want %d", h.Next, err, tt.next)
				}
				if h.File != nil {
					h.File.Close()
				}
				l.Close()
			}
			said, missing := "", false
			for e, err := range auditlog.Read(t.Context(), dir, auditlog.Query{}) {
				var damage *auditlog.DamageError
				switch {
				case errors.As(err, &damage):
					missing = true
				case err != nil:
					t.Fatal(err)
				case e.Unmapped.Sallyport.State == "audit-truncated":
					said += e.Message
					if e.Metadata.Sequence != tt.after+1 {
						t.Errorf("it is event %d, want %d", e.Metadata.Sequence, tt.after+1)
					}
				}
			}
			if !strings.HasPrefix(said, tt.says) || strings.Count(said, "missing") > 1 || tt.says == "" && said != "" {
				t.Errorf("said %q, want %q", said, tt.says)
			}
			if want := tt.says != "" && tt.events > 0; missing != want {
				t.Errorf("a reader is told of damage: %v, want %v", missing, want)
			}
		})
	}
}
