package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/config"
	"sallyport/internal/daemon"
	"sallyport/internal/test/clitest"
	"sallyport/internal/test/must"
)

// run is the command line in this process: what it prints, and its status.
func run(t *testing.T, stdin string, args ...string) (string, int, error) {
	t.Helper()
	return clitest.Run(t, newRoot(), stdin, args...)
}

// A mistyped command exits with 2, a failed one with 1, and both say what to do.
func TestExitStatus(t *testing.T) {
	_, file := clitest.Configured(t, "")
	_, bad := clitest.Configured(t, "egres: []\n")
	for _, tt := range []struct {
		args   string
		status int
		says   string
	}{
		{"frobnicate", 2, "--help"},
		{"sandbx", 2, `did you mean "sandbox"`},
		{"sandbox lst", 2, "ls"},
		{"sandbox run", 2, "`sallyport run`"},
		{"cp a", 2, "write sallyport cp SRC DST"},
		{"hibernate demo", 2, "`sallyport sandbox hibernate`"},
		{"memory replay", 2, "`sallyport policy replay`"},
		{"sandbox exec demo -it -- sh", 2, "leave out -t"},
		{"status --no-such-flag", 2, "--help"},
		{"status extra", 2, "no argument"},
		{"sandbox rm", 2, "write sallyport sandbox rm NAME [NAME ...]"},
		{"sandbox get one two", 2, `"two" is too much: write sallyport sandbox get NAME`},
		{"sandbox snapshot", 2, "write sallyport sandbox snapshot NAME [SNAPSHOT]"},
		{"sandbox changes a b c", 2, `"c" is too much`},
		{"sandbox fork", 2, "NAME [CHILD ...]"},
		{"sandbox set a", 2, "nothing is to be set"},
		{"sandbox set a -o json", 2, "nothing is to be set"},
		{"sandbox set a --tag x --env y", 2, "--env \"y\": write NAME=VALUE"},
		{"sandbox create a --cpus two", 2, "--cpus \"two\": write a number, as 2 or 1.5"},
		{"sandbox create a --memory 1XB", 2, "--memory \"1XB\": write a size, as 64KiB"},
		{"sandbox create a --idle 1d", 2, "--idle \"1d\": write a time, as 90s"},
		{"sandbox exec a --timeout x -- true", 2, "--timeout \"x\": write a time, as 90s"},
		{"sandbox output a b --from x", 2, "--from \"x\": write a whole number"},
		{"sandbox expose a 80 --for 0s", 2, "--for 0s: use 1s to 24h"},
		{"sandbox fork a --count 0", 2, "--count 0: use 1 to 64"},
		{"sandbox fork a --count 1000", 2, "--count 1000: use 1 to 64"},
		{"run demo", 2, "NAME -- COMMAND"},
		{"run demo echo -- hello", 2, "NAME -- COMMAND"},
		{"run demo --env X -- true", 2, "NAME=VALUE"},
		{"sandbox exec demo --", 2, "sandbox exec NAME -- COMMAND"},
		{"status -o xml", 2, "text or json"},
		{"secret set name value", 2, "never an argument"},
		{"policy explain GET not-a-url", 2, "https://"},
		{"policy explain GET https://a.example.test:0x50/", 2, "not a URL"},
		{"audit query --kind everything", 2, "decision, completion"},
		{"audit tail", 1, "sallyport up"},
		{"status", 1, "sallyport up"},
		{"memory view ../../etc passwd", 1, "lower-case"},
		{"policy check --config " + bad, 1, "see above"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			_, status, err := run(t, "", append([]string{"--config", file}, strings.Fields(tt.args)...)...)
			if status != tt.status || err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %d, %v, want %d with %q", status, err, tt.status, tt.says)
			}
		})
	}
}

func TestCommandStatusIsPassedOn(t *testing.T) {
	if got := cli.ExitStatus(fmt.Errorf("wrapped: %w", cli.ExitCode(42))); got != 42 {
		t.Errorf("got %d, want 42", got)
	}
}

// A command that a signal broke off exits as a shell says it, silently; one that failed on the
// way, or ended well, does not.
func TestBrokenOff(t *testing.T) {
	ctx, stop := untilSignal(t.Context(), syscall.SIGUSR1)
	defer stop()
	failed := errors.New("failed")
	if err := brokenOff(ctx, context.Canceled); !errors.Is(err, context.Canceled) {
		t.Errorf("without a signal: %v", err)
	}
	must.OK(t, syscall.Kill(os.Getpid(), syscall.SIGUSR1))
	<-ctx.Done()
	for _, tt := range []struct {
		err    error
		status int
	}{
		{nil, 0}, {failed, 1}, {fmt.Errorf("reading: %w", ctx.Err()), 128 + 10}, {fmt.Errorf("reading: %w", context.Cause(ctx)), 128 + 10},
		{cli.ExitCode(7), 7}, {errors.Join(ctx.Err(), failed), 1},
	} {
		if got := cli.ExitStatus(brokenOff(ctx, tt.err)); got != tt.status {
			t.Errorf("%v: got %d, want %d", tt.err, got, tt.status)
		}
	}
}

// A secret can be set before the daemon's first start. It is on record, its
// value nowhere in the clear.
func TestSecretBeforeTheDaemon(t *testing.T) {
	const value = "sk-very-secret"
	dir, file := clitest.Configured(t, "vault: {address: 'https://vault.example.test', auth: {tokenFile: t}}\n"+
		"credentials: [{name: key}, {name: away, source: {vault: {path: secret/data/a}}}]\n")
	out, status, err := run(t, value+"\n", "secret", "set", "key", "--config", file)
	if status != 0 || !strings.Contains(out, "key is set") {
		t.Fatalf("got %d, %q, %v", status, out, err)
	}
	if _, status, err := run(t, value, "secret", "set", "away", "--config", file); status != 1 || !strings.Contains(err.Error(), "comes from vault secret/data/a") {
		t.Errorf("one of Vault's: got %d, %v", status, err)
	}
	if _, status, err := run(t, "\n", "secret", "set", "key", "--config", file); status != 1 || !strings.Contains(err.Error(), "empty") {
		t.Errorf("an empty one: got %d, %v", status, err)
	}
	both := []string{"secret", "set", "key", "--config", file, "--field", "username", "--field", "password"}
	for _, tt := range []struct{ stdin, says string }{
		{"someone\n" + value + "\n", ""}, {"someone\r\n" + value + "\r\n", ""}, {"someone\n", "for 2 fields there are 1 lines"},
		{"someone\n" + value + "\nmore\n", "there are 3 lines"}, {"someone\n\n", "empty"},
	} {
		if _, status, err := run(t, tt.stdin, both...); (status == 0) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%q for two fields: got %d, %v", tt.stdin, status, err)
		}
	}
	if _, status, err := run(t, value, append(both, "--field", "password")...); status != 2 || !strings.Contains(err.Error(), "twice") {
		t.Errorf("a field twice: got %d, %v", status, err)
	}
	if out, _, err := run(t, "", "audit", "tail", "--config", file); !strings.Contains(out, "secret key set") {
		t.Errorf("the audit: got %q, %v", out, err)
	}
	err = filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(value)) {
			t.Errorf("the value is in %s", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// Two daemons on one data directory would tear its log.
func TestOneDaemon(t *testing.T) {
	_, file := clitest.Configured(t, "")
	cfg, err := config.Load(file)
	must.OK(t, err)
	must.OK(t, os.MkdirAll(cfg.DataDir, 0o700))
	release, err := daemon.Lock(cfg)
	must.OK(t, err)
	_, status, err := run(t, "x", "secret", "set", "key", "--config", file)
	if status != 1 || !strings.Contains(err.Error(), "sallyport down") {
		t.Errorf("got %d, %v, want a refusal that says what to do", status, err)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
}
