package host_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"sallyport/gateway/credential"
	"sallyport/gateway/credential/host"
	"sallyport/internal/test/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const value = "a-token-of-the-host-0123"

// refused wants an error of a kind that says something and has no secret in it.
func refused(t *testing.T, src credential.Source, want error, says string) {
	t.Helper()
	_, err := src.Read(t.Context())
	if !errors.Is(err, want) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), value) {
		t.Errorf("error %v, want %v that says %q", err, want, says)
	}
}

func token(t *testing.T, src credential.Source) string {
	t.Helper()
	m, err := src.Read(t.Context())
	must.OK(t, err)
	return m.Fields["token"].Reveal()
}

func TestEnv(t *testing.T) {
	t.Setenv("SALLYPORT_TEST_KEY", value+"\n")
	src := host.NewEnv("SALLYPORT_TEST_KEY")
	if got := token(t, src); got != value {
		t.Errorf("read %q", got)
	}
	if out, err := exec.Command("env").Output(); err != nil || strings.Contains(string(out), value) {
		t.Errorf("a process that is started has it too: %v", err)
	}
	if got := token(t, host.NewEnv("SALLYPORT_TEST_KEY")); got != value { // after a reload
		t.Errorf("read again %q", got)
	}
	refused(t, host.NewEnv("SALLYPORT_TEST_NONE"), credential.ErrNoSecret, "SALLYPORT_TEST_NONE")
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	src := host.NewFile(path)
	refused(t, src, credential.ErrNoSecret, "is not there")
	for _, text := range []string{value, value + "\n", value + "\r\n", "another-" + value + "\n"} {
		must.OK(t, os.WriteFile(path, []byte(text), 0o600))
		if got := token(t, src); got != strings.TrimRight(text, "\r\n") {
			t.Errorf("%q is read as %q", text, got)
		}
	}
	must.OK(t, os.Chmod(path, 0o644))
	refused(t, src, credential.ErrRefused, "chmod 600")
	must.OK(t, os.Chmod(path, 0o600))
	must.OK(t, os.WriteFile(path, nil, 0o600))
	refused(t, src, credential.ErrNoSecret, "1 to 65536 bytes")
	must.OK(t, os.WriteFile(path, []byte(strings.Repeat("a", 64<<10+1)), 0o600))
	refused(t, src, credential.ErrNoSecret, "1 to 65536 bytes")
}

// Kubernetes mounts a secret as links through ..data, which it exchanges.
func TestFolder(t *testing.T) {
	dir := t.TempDir()
	mount := func(name string, fields map[string]string) {
		t.Helper()
		must.OK(t, os.Mkdir(filepath.Join(dir, name), 0o755))
		for field, text := range fields {
			must.OK(t, os.WriteFile(filepath.Join(dir, name, field), []byte(text), 0o400))
			_ = os.Symlink(filepath.Join("..data", field), filepath.Join(dir, field))
		}
		must.OK(t, os.Symlink(name, filepath.Join(dir, "..data_tmp")))
		must.OK(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	src := host.NewFile(dir)
	for name, user := range map[string]string{"..2026_01": "one", "..2026_02": "two"} {
		mount(name, map[string]string{"username": user, "password": value + "\n"})
		m, err := src.Read(t.Context())
		must.OK(t, err)
		if len(m.Fields) != 2 || m.Fields["username"].Reveal() != user || m.Fields["password"].Reveal() != value || m.Version == "" {
			t.Errorf("read %d fields, username %q", len(m.Fields), m.Fields["username"].Reveal())
		}
	}
	must.OK(t, os.Chmod(filepath.Join(dir, "password"), 0o444))
	refused(t, src, credential.ErrRefused, "password")
}

func sh(script string) *host.Command { return host.NewCommand([]string{"/bin/sh", "-c", script}) }

func TestCommand(t *testing.T) {
	t.Setenv("SALLYPORT_OTHER_SECRET", value)
	for name, tt := range map[string]struct {
		script string
		want   map[string]string
		err    error
		says   string
	}{
		"a line":             {"echo " + value, map[string]string{"token": value}, nil, ""},
		"without a newline":  {"printf " + value, map[string]string{"token": value}, nil, ""},
		"its environment":    {`echo "$SALLYPORT_OTHER_SECRET${PATH:+with a path}${HOME:+ and a home}"`, map[string]string{"token": "with a path and a home"}, nil, ""},
		"a token":            {`echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"` + value + `","expirationTimestamp":"2100-01-01T00:00:00Z"}}'`, map[string]string{"token": value}, nil, ""},
		"a certificate":      {`echo '{"apiVersion":"client.authentication.k8s.io/v1beta1","kind":"ExecCredential","status":{"clientCertificateData":"c","clientKeyData":"k"}}'`, map[string]string{"certificate": "c", "key": "k"}, nil, ""},
		"two lines":          {"echo " + value + "; echo more", nil, credential.ErrNoSecret, "neither one line"},
		"nothing":            {"true", nil, credential.ErrNoSecret, "neither one line"},
		"other JSON":         {`echo '{"token":"` + value + `"}'`, nil, credential.ErrNoSecret, "no ExecCredential"},
		"no status":          {`echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential"}'`, nil, credential.ErrNoSecret, "without status"},
		"a failure":          {"echo " + value + "; echo the vault is locked, not " + value + " >&2; exit 3", nil, credential.ErrUnavailable, "exit status 3: it says: the vault is locked, not …"},
		"a long complaint":   {"head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1", nil, credential.ErrUnavailable, "xxx …"},
		"too much":           {"head -c 1000000 /dev/zero | tr '\\0' x", nil, credential.ErrNoSecret, "more than"},
		"control characters": {`printf 'a\033[2Jb'`, nil, credential.ErrNoSecret, "neither one line"},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.err != nil {
				refused(t, sh(tt.script), tt.err, tt.says)
				return
			}
			m, err := sh(tt.script).Read(t.Context())
			must.OK(t, err)
			if len(m.Fields) != len(tt.want) {
				t.Errorf("%d fields", len(m.Fields))
			}
			for field, want := range tt.want {
				if got := m.Fields[field].Reveal(); got != want {
					t.Errorf("%s: got %q, want %q", field, got, want)
				}
			}
			if name == "a token" && m.Expires.Year() != 2100 {
				t.Errorf("expires %v", m.Expires)
			}
		})
	}
	refused(t, host.NewCommand([]string{"no-such-program-of-ours"}), credential.ErrRefused, "not installed")

	file := filepath.Join(t.TempDir(), "n")
	must.OK(t, os.WriteFile(file, []byte("one"), 0o600))
	src := sh("cat " + file)
	for _, want := range []string{"1", "1", "2"} {
		if want == "2" {
			must.OK(t, os.WriteFile(file, []byte("two"), 0o600))
		}
		if m, err := src.Read(t.Context()); err != nil || m.Version != want {
			t.Errorf("version %q, %v, want %s", m.Version, err, want)
		}
	}
}

// A command that hangs is killed, with what it started.
func TestCommandThatHangs(t *testing.T) {
	pid := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		must.Soon(t, "the command", func() bool { text, _ := os.ReadFile(pid); return len(text) > 1 })
		cancel()
	}()
	_, err := sh("sleep 1000 & echo $! > " + pid + "; wait").Read(ctx)
	if !errors.Is(err, credential.ErrUnavailable) || !strings.Contains(err.Error(), "in time") {
		t.Errorf("error %v", err)
	}
	text, err := os.ReadFile(pid)
	must.OK(t, err)
	must.Soon(t, "its end", func() bool {
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(text)) + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}
