package auditlog_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
)

// Each event is picked by its number and its place, and by no other ones.
func TestPick(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, auditlog.Options{SegmentSize: 2000})
	for i := range 20 {
		e := event(fmt.Sprint(i))
		if i == 7 {
			e.Detail = strings.Repeat("long", 5000)
		}
		must.OK(t, l.Append(t.Context(), e))
	}
	l.Close()
	p, err := auditlog.OpenPicker(dir)
	must.OK(t, err)
	defer p.Close()
	if p.First() != 1 {
		t.Errorf("it begins with %d", p.First())
	}
	var all []auditlog.Entry
	for e, err := range auditlog.Entries(t.Context(), dir, auditlog.Query{}) {
		must.OK(t, err)
		e.JSON = []byte(string(e.JSON))
		all = append(all, e)
	}
	for _, e := range all {
		got, err := p.Pick(e.Number, e.Offset)
		must.OK(t, err)
		if diff := cmp.Diff(e, got); diff != "" {
			t.Error(diff)
		}
	}
	for _, e := range []auditlog.Entry{{Number: 0}, {Number: 99}, {Number: 3, Offset: 1}, {Number: 3, Offset: 1 << 40}, {Number: 2, Offset: 0}} {
		if got, err := p.Pick(e.Number, e.Offset); !errors.Is(err, auditlog.ErrNoEntry) {
			t.Errorf("%d at %d: %v, %v", e.Number, e.Offset, got.Event, err)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil || len(files) < 3 {
		t.Fatalf("%v, %v", files, err)
	}
	must.OK(t, os.Remove(files[1]))
	gone := all[len(all)-1]
	for _, e := range all {
		if strings.Contains(files[1], fmt.Sprintf("%020d", e.Number)) {
			gone = e
		}
	}
	if got, err := p.Pick(gone.Number, gone.Offset); !errors.Is(err, auditlog.ErrNoEntry) {
		t.Errorf("of a segment that is gone: %v, %v", got.Event, err)
	}
}
