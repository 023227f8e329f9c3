package secretfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sallyport/internal/secretfile"
	"sallyport/internal/test/must"
)

func TestRead(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(path string) error
		want   string // of the error; empty: it is read
	}{
		"its owner's alone": {func(path string) error { return os.Chmod(path, 0o400) }, ""},
		"a link to it": {func(path string) error {
			return errors.Join(os.Rename(path, path+".data"), os.Symlink(path+".data", path))
		}, ""},
		"the group reads": {func(path string) error { return os.Chmod(path, 0o640) }, "chmod 600"},
		"all read":        {func(path string) error { return os.Chmod(path, 0o604) }, "chmod 600"},
		"all write":       {func(path string) error { return os.Chmod(path, 0o602) }, "chmod 600"},
		"another's":       {func(path string) error { return os.Chown(path, 12345, -1) }, "chown"},
		"a pipe":          {func(path string) error { return errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)) }, "regular"},
		"a folder":        {func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) }, "regular"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "another's" && os.Geteuid() != 0 {
				must.Lack(t, "needs root to give a file away")
			}
			path := filepath.Join(t.TempDir(), "secret")
			must.OK(t, os.WriteFile(path, []byte("s3cret\n"), 0o600))
			must.OK(t, tt.change(path))
			text, err := secretfile.Read(path, 100)
			switch {
			case tt.want == "" && (err != nil || string(text) != "s3cret\n"):
				t.Errorf("got %q, %v", text, err)
			case tt.want != "" && (!errors.Is(err, secretfile.ErrUnsafe) || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %q, %v, want %q", text, err, tt.want)
			}
		})
	}
}

func TestReadMounted(t *testing.T) {
	if os.Geteuid() != 0 {
		must.Lack(t, "needs root to give a file to a group")
	}
	for name, tt := range map[string]struct {
		mode os.FileMode
		gid  int
		want string // of the error; empty: it is read
	}{
		"root's group reads":    {0o440, 0, ""},
		"root alone":            {0o400, 0, ""},
		"another group reads":   {0o440, 12345, "chmod 600"},
		"root's group writes":   {0o460, 0, "chmod 600"},
		"all read":              {0o444, 0, "chmod 600"},
		"another group may not": {0o400, 12345, ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "secret")
			must.OK(t, os.WriteFile(path, []byte("s3cret"), 0o600))
			must.OK(t, errors.Join(os.Chown(path, 0, tt.gid), os.Chmod(path, tt.mode)))
			text, err := secretfile.ReadMounted(path, 100)
			switch {
			case tt.want == "" && (err != nil || string(text) != "s3cret"):
				t.Errorf("got %q, %v", text, err)
			case tt.want != "" && (!errors.Is(err, secretfile.ErrUnsafe) || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want ErrUnsafe with %q", err, tt.want)
			}
		})
	}
}
