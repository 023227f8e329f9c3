package auditlog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
)

// long is a log of events in several segments of several frames each.
func long(t testing.TB, events int) string {
	t.Helper()
	dir := t.TempDir()
	l, err := auditlog.Open(dir, auditlog.Options{SegmentSize: 400_000})
	must.OK(t, err)
	defer l.Close()
	for from := 0; from < events; from += 50 {
		var group []*audit.Event
		for i := range min(50, events-from) {
			e := event(fmt.Sprint(from + i))
			e.Detail = strings.Repeat("x", rand.IntN(900))
			group = append(group, e)
		}
		must.OK(t, l.Append(context.Background(), group...))
	}
	return dir
}

// compressAll compresses what is sealed, and says how many segments that were.
func compressAll(t testing.TB, dir string) (n int) {
	t.Helper()
	all, err := auditlog.Segments(dir)
	must.OK(t, err)
	for _, s := range all {
		if s.Last == 0 {
			continue
		}
		must.OK(t, auditlog.Compress(context.Background(), dir, s.First))
		n++
	}
	return n
}

// Readers do not see whether a segment is compressed, wherever they begin.
func TestCompress(t *testing.T) {
	const events = 2000
	dir := long(t, events)
	var before []auditlog.Entry
	for e, err := range auditlog.Entries(t.Context(), dir, auditlog.Query{}) {
		must.OK(t, err)
		e.JSON = bytes.Clone(e.JSON)
		before = append(before, e)
	}
	plain, _ := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	first, err := os.ReadFile(plain[0])
	must.OK(t, err)
	sum, err := auditlog.Sum(t.Context(), dir, 1)
	must.OK(t, err)
	picker, err := auditlog.OpenPicker(dir)
	must.OK(t, err)
	defer picker.Close()

	if n := compressAll(t, dir); n < 3 || compressAll(t, dir) != n {
		t.Fatalf("%d segments", n)
	}
	left, _ := filepath.Glob(filepath.Join(dir, "*"))
	for _, f := range left[:len(left)-1] {
		if !strings.HasSuffix(f, ".jsonl.zst") {
			t.Errorf("%s is there", f)
		}
	}
	all, err := auditlog.Segments(dir)
	if err != nil || !all[0].Compressed || all[0].Bytes*2 > int64(len(first)) {
		t.Errorf("%+v, %v", all, err)
	}
	if again, err := auditlog.Sum(t.Context(), dir, 1); err != nil || !bytes.Equal(again, sum) {
		t.Errorf("the sum was %x and is %x, %v", sum, again, err)
	}
	n := 0
	for e, err := range auditlog.Entries(t.Context(), dir, auditlog.Query{}) {
		if err != nil || !bytes.Equal(e.JSON, before[n].JSON) || e.Offset != before[n].Offset {
			t.Fatalf("event %d: %+v, %v", n+1, e, err)
		}
		n++
	}
	if n != events {
		t.Errorf("%d events", n)
	}
	for range 40 {
		want := before[rand.IntN(events)]
		for e, err := range auditlog.Entries(t.Context(), dir, auditlog.Query{From: want.Number}) {
			if err != nil || e.Number != want.Number || !bytes.Equal(e.JSON, want.JSON) {
				t.Fatalf("from %d: %+v, %v", want.Number, e, err)
			}
			break
		}
		if got, err := picker.Pick(want.Number, want.Offset); err != nil || !bytes.Equal(got.JSON, want.JSON) {
			t.Fatalf("picked %d: %v", want.Number, err)
		}
		if got, err := auditlog.Find(t.Context(), dir, want.Event.ID()); err != nil || got.Metadata.Sequence != want.Number {
			t.Fatalf("found %v, %v", got, err)
		}
		if has, err := auditlog.Has(t.Context(), dir, want.Event.ID()); !has || err != nil {
			t.Fatalf("%d is not there: %v", want.Number, err)
		}
	}
	if got, want := collect(t, dir, auditlog.Query{Last: 1500}), events-1500; !strings.HasPrefix(got, fmt.Sprint(want, " ")) || strings.Contains(got, "!") {
		t.Errorf("the last ones begin with %.20s", got)
	}
	// Any decompressor reads it.
	z, err := os.Open(left[0])
	must.OK(t, err)
	defer z.Close()
	d, err := zstd.NewReader(z)
	must.OK(t, err)
	defer d.Close()
	if got, err := io.ReadAll(d); err != nil || !bytes.Equal(got, first) {
		t.Errorf("%d bytes of %d, %v", len(got), len(first), err)
	}
	// The last segment is written to.
	if err := auditlog.Compress(t.Context(), dir, all[len(all)-1].First); err == nil {
		t.Error("the last segment was compressed")
	}
}

// Records after a compressed segment are gone: the log goes on behind it.
func TestOpenBehindCompressed(t *testing.T) {
	dir := long(t, 2000)
	compressAll(t, dir)
	all, err := auditlog.Segments(dir)
	must.OK(t, err)
	last := all[len(all)-1]
	must.OK(t, os.Remove(fmt.Sprintf("%s/%020d.jsonl", dir, last.First)))
	l := open(t, dir, auditlog.Options{})
	appendAll(t, l, "after")
	if got := collect(t, dir, auditlog.Query{From: last.First - 1}); got != fmt.Sprint(last.First-2, " after") {
		t.Error(got)
	}
}

// compressOnce is the child of TestCompressKilled.
func compressOnce(dir string) {
	runtime.LockOSThread() // strace counts the calls of each thread
	if err := auditlog.Compress(context.Background(), dir, 1); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// At each system call that changes a file the process is killed: each event is there
// once, and another try ends with the one compressed file.
func TestCompressKilled(t *testing.T) {
	strace := must.Program(t, "strace")
	whole := long(t, 1500)
	want := collect(t, whole, auditlog.Query{})
	kills := map[string]int{}
	for _, call := range []string{"openat", "write", "fsync", "renameat", "unlinkat"} {
		for n, killed := 1, true; killed; n++ {
			dir := t.TempDir()
			must.OK(t, os.CopyFS(dir, os.DirFS(whole)))
			args := []string{"-f", "-o", "/dev/null", "-e", "trace=" + call, "-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", call, n), "-P", dir}
			for _, form := range []string{"", ".zst", ".zst.tmp"} {
				args = append(args, "-P", filepath.Join(dir, "00000000000000000001.jsonl"+form))
			}
			cmd := exec.Command(strace, append(args, os.Args[0])...)
			cmd.Env = append(os.Environ(), "AUDIT_TEST_COMPRESS="+dir)
			out, err := cmd.CombinedOutput()
			killed = err != nil
			if killed && !strings.Contains(err.Error(), "killed") {
				t.Fatalf("%s %d: %v\n%s", call, n, err, out)
			}
			if got := collect(t, dir, auditlog.Query{}); got != want {
				t.Fatalf("killed at %s %d: another log", call, n)
			}
			must.OK(t, auditlog.Compress(t.Context(), dir, 1))
			files, _ := filepath.Glob(filepath.Join(dir, "00000000000000000001*"))
			if got := collect(t, dir, auditlog.Query{}); got != want || len(files) != 1 || !strings.HasSuffix(files[0], ".zst") {
				t.Fatalf("killed at %s %d, and again: %v", call, n, files)
			}
			if killed {
				kills[call]++
			}
		}
	}
	for call, least := range map[string]int{"openat": 4, "write": 4, "fsync": 3, "renameat": 1, "unlinkat": 1} {
		if kills[call] < least {
			t.Errorf("killed at %v", kills)
		}
	}
}

// Readers at work see each event once while segments are compressed, and only the end of
// the log once the oldest are deleted.
func TestReadWhileKept(t *testing.T) {
	const events = 3000
	dir := long(t, events)
	all, err := auditlog.Segments(dir)
	must.OK(t, err)
	var readers sync.WaitGroup
	stop := make(chan struct{})
	for range 3 {
		readers.Go(func() {
			for {
				next := 0
				for e, err := range auditlog.Read(t.Context(), dir, auditlog.Query{}) {
					if err != nil {
						t.Error(err)
						return
					}
					if n := int(e.Metadata.Sequence); n != next && next != 0 && !slices.ContainsFunc(all, func(s auditlog.Segment) bool { return int(s.First) == n }) || n < next {
						t.Errorf("event %d where %d belongs", n, next)
					}
					next = int(e.Metadata.Sequence) + 1
				}
				if next != events+1 {
					t.Errorf("the last event is %d", next-1)
				}
				if e, err := auditlog.Lookup(t.Context(), dir, "0195c8a0-0000-7000-8000-000000000000"); e != nil || err != nil {
					t.Error(e, err)
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	compressAll(t, dir)
	for _, s := range all[:len(all)-1] {
		must.OK(t, auditlog.Remove(dir, s.Last))
	}
	close(stop)
	readers.Wait()
	last := all[len(all)-1]
	if got, err := auditlog.Segments(dir); err != nil || len(got) != 1 || got[0].First != last.First {
		t.Errorf("%v, %v", got, err)
	}
	// Neither the last one nor one before which others stay is deleted.
	must.OK(t, auditlog.Remove(dir, events+10))
	if got := collect(t, dir, auditlog.Query{Last: 1}); got != fmt.Sprint(events-1) {
		t.Error(got)
	}
}

// A changed byte of a compressed file is damage that readers tell, or changes nothing of
// what it holds: it never makes another event.
func TestCompressedDamage(t *testing.T) {
	dir := long(t, 700)
	compressAll(t, dir)
	want := strings.Fields(collect(t, dir, auditlog.Query{}))
	path := filepath.Join(dir, "00000000000000000001.jsonl.zst")
	right, err := os.ReadFile(path)
	must.OK(t, err)
	told := 0
	for i := range right {
		if i > 40 && i < len(right)-60 && i%97 != 0 { // each of a frame's head, of the table, and some
			continue
		}
		wrong := bytes.Clone(right)
		wrong[i] ^= 1 << (i % 8)
		must.OK(t, os.WriteFile(path, wrong, 0o600))
		got := strings.Fields(collect(t, dir, auditlog.Query{}))
		if slices.Equal(got, want) {
			continue
		}
		told++
		if !slices.Contains(got, "!") || got[len(got)-1] != want[len(want)-1] {
			t.Fatalf("byte %d: %.60v … %s", i, got, got[len(got)-1])
		}
	}
	if told < 50 {
		t.Errorf("%d changes were told", told)
	}
	for _, wrong := range [][]byte{nil, right[:9], right[:len(right)/2], append(bytes.Clone(right), 0)} {
		must.OK(t, os.WriteFile(path, wrong, 0o600))
		if got := strings.Fields(collect(t, dir, auditlog.Query{})); got[0] != "!" || got[len(got)-1] != want[len(want)-1] {
			t.Errorf("%d bytes of it: %.40v", len(wrong), got)
		}
	}
}

// FuzzCompressed: whatever a compressed file holds, readers end, and with it.
func FuzzCompressed(f *testing.F) {
	dir := long(f, 600)
	compressAll(f, dir)
	good, err := os.ReadFile(filepath.Join(dir, "00000000000000000001.jsonl.zst"))
	must.OK(f, err)
	f.Add(good)
	f.Add(good[len(good)-60:])
	f.Add([]byte{0x5E, 0x2A, 0x4D, 0x18, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0xB1, 0xEA, 0x92, 0x8F})
	f.Fuzz(func(t *testing.T, raw []byte) {
		dir := t.TempDir()
		must.OK(t, os.WriteFile(filepath.Join(dir, "00000000000000000001.jsonl.zst"), raw, 0o600))
		l := open(t, dir, auditlog.Options{})
		appendAll(t, l, "after")
		last := ""
		for e, err := range auditlog.Read(t.Context(), dir, auditlog.Query{}) {
			var damage *auditlog.DamageError
			if err != nil && !errors.As(err, &damage) {
				t.Fatal(err)
			}
			if err == nil {
				last = e.Message
			}
		}
		if last != "after" {
			t.Errorf("the last event is %q", last)
		}
	})
}
