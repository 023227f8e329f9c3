package footprint

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Only what is the same as in the program's file can be given back.
func TestParse(t *testing.T) {
	part := func(span, mode, path, anonymous string) string {
		return span + " " + mode + " 00001000 fe:00 1234    " + path + "\nSize:    8 kB\nAnonymous:    " + anonymous + " kB\nVmFlags: rd mr\n"
	}
	const path = "/opt/a program"
	maps := part("00400000-01a02000", "r-xp", path, "0") + part("01a02000-03475000", "r--p", path, "0") + part("03475000-03655000", "rw-p", path, "0") +
		part("04000000-04001000", "r--p", path, "4") + part("05000000-05001000", "r--p", "/lib"+path, "0") + part("7f0000000000-7f0000001000", "r-xp", "", "0")
	if d := cmp.Diff(parse(maps, path), Program{{0x400000, 0x1a02000}, {0x1a02000, 0x3475000}}, cmp.AllowUnexported(span{})); d != "" {
		t.Error(d)
	}
	if parse("", path) != nil || parse("a\n-:\n", path) != nil {
		t.Error("something of nothing")
	}
}

// A program goes on without the pages that it has given back.
func TestWatch(t *testing.T) {
	p := Find()
	if len(p) == 0 {
		t.Fatal("the program is not found")
	}
	p.release()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	p.Watch(ctx)
	if raw, err := os.ReadFile("/proc/self/maps"); err != nil || strings.Count(string(raw), "\n") < 3 {
		t.Errorf("got %s, %v", raw, err)
	}
}
