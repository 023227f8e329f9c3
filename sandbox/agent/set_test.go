package agent_test

import (
	"bytes"
	"errors"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/agent/wire"
)

// filed is a route for a file.
func filed(route, path string, more ...string) string {
	q := url.Values{"path": {path}}
	for i := 0; i < len(more); i += 2 {
		q.Set(more[i], more[i+1])
	}
	return "/files" + route + "?" + q.Encode()
}

// refusedWith tells whether an agent refused with a status.
func refusedWith(err error, status int) bool {
	var said *channel.Error
	return errors.As(err, &said) && said.Status == status
}

func TestSet(t *testing.T) {
	_, _, c := serve(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{"plain": "hello", "other": "kept"} {
		if err := os.WriteFile(at(name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("plain", at("link")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(at("pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	then := time.Date(2001, 2, 3, 4, 5, 6, 789, time.UTC)
	got := call[wire.File](t, c, "POST", filed("/set", at("link")), wire.Attributes{Mode: new(wire.Mode(0o4751)), Modified: &then, Size: new(int64(7))})
	if got.Mode != 0o4751 || !got.Modified.Equal(then) || got.Size != 7 || got.Type != wire.Regular {
		t.Errorf("got %+v", got)
	}
	if text, err := os.ReadFile(at("plain")); err != nil || string(text) != "hello\x00\x00" {
		t.Errorf("it holds %q, %v", text, err)
	}
	got = call[wire.File](t, c, "POST", filed("/set", at("other")), wire.Attributes{Mode: new(wire.Mode(0))})
	if got.Mode != 0 || time.Since(got.Modified) > time.Hour || got.Size != 4 {
		t.Errorf("a mode alone: %+v", got)
	}
	for what, tt := range map[string]struct {
		path   string
		in     any
		status int
	}{
		"what is not there":    {at("no"), wire.Attributes{Mode: new(wire.Mode(0))}, http.StatusNotFound},
		"a folder's size":      {dir, wire.Attributes{Size: new(int64(0))}, http.StatusConflict},
		"a size below nothing": {at("plain"), wire.Attributes{Size: new(int64(-1))}, http.StatusBadRequest},
		"no mode":              {at("plain"), map[string]string{"mode": "77777"}, http.StatusBadRequest},
		"a relative path":      {"plain", wire.Attributes{}, http.StatusBadRequest},
		"a pipe's size":        {at("pipe"), wire.Attributes{Size: new(int64(0))}, http.StatusBadRequest},
	} {
		if err := c.JSON(t.Context(), "POST", filed("/set", tt.path), tt.in, nil); !refusedWith(err, tt.status) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestAppend(t *testing.T) {
	_, _, c := serve(t)
	dir := t.TempDir()
	at := filepath.Join(dir, "log")
	add := func(path, text string, more ...string) error {
		req, err := http.NewRequestWithContext(t.Context(), "POST", "http://agent"+filed("/append", path, more...), strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.Do(req, true)
		if err == nil {
			err = resp.Body.Close()
		}
		return err
	}
	big := strings.Repeat("0123456789abcdef", 1<<16)
	for _, tt := range []struct {
		text   string
		more   []string
		status int
		want   string
	}{
		{"one", []string{"mode", "0600"}, 0, "one"},
		{"two", []string{"mode", "0644", "at", "3"}, 0, "onetwo"},
		{"three", []string{"at", "3"}, http.StatusConflict, "onetwo"},
		{"three", []string{"at", "x"}, http.StatusBadRequest, "onetwo"},
		{big, nil, 0, "onetwo" + big},
	} {
		err := add(at, tt.text, tt.more...)
		if tt.status == 0 && err != nil || tt.status != 0 && !refusedWith(err, tt.status) {
			t.Errorf("%.10s %v: %v", tt.text, tt.more, err)
		}
		if got, err := os.ReadFile(at); err != nil || !bytes.Equal(got, []byte(tt.want)) {
			t.Errorf("%.10s: it holds %d bytes, %v", tt.text, len(got), err)
		}
	}
	if i, err := os.Stat(at); err != nil || i.Mode() != 0o600 {
		t.Errorf("its mode: %v, %v", i.Mode(), err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := add(dir, "x"); !refusedWith(err, http.StatusConflict) {
		t.Errorf("a folder: %v", err)
	}
	if err := add(filepath.Join(dir, "no", "file"), "x"); !refusedWith(err, http.StatusNotFound) {
		t.Errorf("in no folder: %v", err)
	}
}
