package jail

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"sallyport/internal/test/must"
)

func TestView(t *testing.T) {
	host := t.TempDir()
	original := filepath.Join(host, "ca.pem")
	v, err := OpenView(filepath.Join(t.TempDir(), "view"), slog.New(slog.DiscardHandler))
	must.OK(t, err)
	shown := func() string {
		data, err := os.ReadFile(v.at(original))
		if err != nil {
			return "none"
		}
		return string(data)
	}
	put := func(text string) {
		t.Helper()
		must.OK(t, os.WriteFile(original+".new", []byte(text), 0o600))
		must.OK(t, os.Rename(original+".new", original))
	}
	public := Copy{Path: original, Keep: func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("secret"), nil) }}
	if err := v.Show(public); err != nil || shown() != "none" {
		t.Fatalf("a file that is not there: %v, %q", err, shown())
	}
	ctx := t.Context()
	go v.Watch(ctx)
	await := func(want string) {
		t.Helper()
		must.Soon(t, fmt.Sprintf("it to show %q", want), func() bool { return shown() == want })
	}
	put("one secret")
	await("one ")
	put("another")
	await("another")
	if i, err := os.Stat(v.at(original)); err != nil || i.Mode().Perm() != 0o644 {
		t.Errorf("the copy has mode %v, %v: its reader has another user", i.Mode(), err)
	}
	must.OK(t, os.Remove(original))
	await("none")
	put("third")
	await("third")
	if err := v.Show(); err != nil || shown() != "none" {
		t.Errorf("a file that is not to be shown any more: %v, %q", err, shown())
	}
}

// A file that could not be copied is tried again, though it has not changed; why is said
// once. Until then what is shown stays.
func TestViewTriesAgain(t *testing.T) {
	original := filepath.Join(t.TempDir(), "ca.pem")
	v, err := OpenView(filepath.Join(t.TempDir(), "view"), slog.New(slog.DiscardHandler))
	must.OK(t, err)
	must.OK(t, os.WriteFile(original, []byte("old"), 0o600))
	must.OK(t, v.Show(Copy{Path: original}))
	// A folder is where the copy is to be, and the file of before beside it.
	aside := v.at(original) + ".aside"
	must.OK(t, os.Rename(v.at(original), aside))
	must.OK(t, os.MkdirAll(filepath.Join(v.at(original), "full"), 0o755))
	for _, text := range []string{"newer", "newest"} {
		must.OK(t, os.WriteFile(original, []byte(text), 0o600))
		if err := v.Show(Copy{Path: original}); err == nil {
			t.Fatalf("%s: nothing is said of a file that cannot be shown", text)
		}
		must.OK(t, v.Show(Copy{Path: original}))
	}
	must.OK(t, v.Remove(original))
	must.OK(t, os.Rename(aside, v.at(original)))
	must.OK(t, v.Show(Copy{Path: original}))
	if data, err := os.ReadFile(v.at(original)); err != nil || string(data) != "newest" {
		t.Errorf("it shows %q, %v, want the newest", data, err)
	}
}

// No name leads out of the folder.
func TestViewEscape(t *testing.T) {
	dir := t.TempDir()
	v, err := OpenView(filepath.Join(dir, "a/view"), slog.New(slog.DiscardHandler))
	must.OK(t, err)
	must.OK(t, v.Write("../../out", []byte("x")))
	if _, err := os.Stat(filepath.Join(dir, "a/view/out")); err != nil {
		t.Error(err)
	}
	must.OK(t, v.Remove("../../a"))
	if _, err := os.Stat(filepath.Join(dir, "a")); err != nil {
		t.Error(err)
	}
}
