package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// step is one scene: what a user types and what must come of it.
type step struct {
	title string
	play  func(context.Context, *stage) error
}

var script = []step{
	{"A computer by name: made the first time, the same one after", persistent},
	{"A request to an allowed destination, with plain curl and no key", injected},
	{"The key is not in the sandbox", absent},
	{"Every other way out is closed, and says so where it can", refused},
	{"What the agent remembers outlives the session", remembered},
	{"Each of these is one record", recorded},
}

// show runs a shell command in the sandbox, as a user would, and prints both.
func (s *stage) show(ctx context.Context, shell string) (out string, code int, err error) {
	fmt.Printf("$ sallyport run demo -- sh -c '%s'\n", shell)
	return s.inside(ctx, "demo", shell, true)
}

func (s *stage) inside(ctx context.Context, name, shell string, print bool) (string, int, error) {
	data, err := s.command(ctx, "", "run", name, "--", "sh", "-c", shell).CombinedOutput()
	out := strings.TrimRight(string(data), "\n")
	if print && out != "" {
		for line := range strings.Lines(out) {
			fmt.Print("  " + line)
		}
		fmt.Println()
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return out, exit.ExitCode(), nil
	}
	return out, 0, err
}

func proved(format string, a ...any) { fmt.Printf("  ✓ "+format+"\n", a...) }

// want fails the demo when an outcome is not what it must be.
func want(ok bool, format string, a ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf("not as promised: "+format, a...)
}

func persistent(ctx context.Context, s *stage) error {
	began := time.Now()
	out, code, err := s.show(ctx, "dmesg | head -1; echo kept > /root/notes; mkdir -p /opt/tool && echo v1 > /opt/tool/version")
	if err == nil {
		err = want(code == 0 && strings.Contains(out, "gVisor"), "exit %d, %q", code, out)
	}
	if err != nil {
		return err
	}
	proved("a gVisor sandbox, created and used in %.1f s", time.Since(began).Seconds())
	if out, code, err = s.show(ctx, "cat /root/notes /opt/tool/version"); err != nil {
		return err
	}
	proved("the same one, with its files")
	return want(code == 0 && out == "kept\nv1", "exit %d, %q", code, out)
}

func injected(ctx context.Context, s *stage) error {
	out, code, err := s.show(ctx, "curl -sS https://api.example.test/v1/models")
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(s.key))
	if err := want(code == 0 && strings.Contains(out, `"saw_key":true`) && strings.Contains(out, hex.EncodeToString(sum[:])[:12]), "exit %d, %q", code, out); err != nil {
		return err
	}
	proved("the upstream saw the key; no proxy variable, no key, the image's own certificates plus one")
	return nil
}

// absent searches files, environment and processes for the key in the forms
// that it could take. The forms come from outside, on standard input.
func absent(ctx context.Context, s *stage) error {
	forms := []string{s.key, base64.StdEncoding.EncodeToString([]byte(s.key))[:12], hex.EncodeToString([]byte(s.key))}
	const search = `cat > /dev/shm/forms; env | grep -cFf /dev/shm/forms; grep -rlFf /dev/shm/forms --exclude-dir=sys --exclude-dir=proc --exclude-dir=shm / 2>/dev/null; cat /proc/[0-9]*/environ 2>/dev/null | grep -cFf /dev/shm/forms; rm /dev/shm/forms`
	run := func() (string, error) {
		out, err := s.command(ctx, strings.Join(forms, "\n")+"\n", "run", "demo", "--", "sh", "-c", search).CombinedOutput()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = nil
		}
		return strings.Join(strings.Fields(string(out)), " "), err
	}
	fmt.Println("$ sallyport run demo -- sh -c 'grep -rFf forms-of-the-key / …' < forms-of-the-key")
	out, err := run()
	if err == nil {
		err = want(out == "0 0", "found: %q", out)
	}
	if err != nil {
		return err
	}
	// A canary shows that the search finds what is there.
	const canary = "canary-in-the-sandbox"
	if _, _, err := s.inside(ctx, "demo", "echo "+canary+" > /root/canary", false); err != nil {
		return err
	}
	forms = []string{canary}
	out, err = run()
	if err == nil {
		err = want(strings.Contains(out, "/root/canary"), "the search does not find a planted canary: %q", out)
	}
	if err != nil {
		return err
	}
	proved("not in its files, environment or processes; the same search finds a canary that was put there")
	return nil
}

func refused(ctx context.Context, s *stage) error {
	for _, url := range []string{"https://unlisted.example.test/", "http://unlisted.example.test/"} {
		out, _, err := s.show(ctx, "curl -sS "+url)
		if err == nil {
			err = want(strings.Contains(out, "unlisted.example.test") && strings.Contains(strings.ToLower(out), "decision"), "%q", out)
		}
		if err != nil {
			return err
		}
	}
	proved("a refusal that an agent can read, with the decision's id")
	neighbour, err := s.neighbour(ctx)
	if err != nil {
		return err
	}
	ways := []struct{ what, shell string }{
		{"a direct address", "curl -sSf -m 3 -o /dev/null https://198.51.100.10/"},
		{"another sandbox", "curl -sSf -m 3 -o /dev/null http://" + neighbour + ":8000/"},
		{"the metadata address", "curl -sS -m 3 -f -o /dev/null http://169.254.169.254/latest/meta-data/"},
		{"UDP", `python3 -c 'import socket; s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(2); s.sendto(b"x",("198.51.100.10",53)); s.recv(99)'`},
		{"IPv6", `python3 -c 'import socket; s=socket.socket(socket.AF_INET6,socket.SOCK_DGRAM); s.settimeout(2); s.sendto(b"x",("2001:db8::1",53)); s.recv(99)'`},
	}
	for _, w := range ways {
		out, code, err := s.inside(ctx, "demo", w.shell, false)
		if err == nil {
			err = want(code != 0, "%s got through: %q", w.what, out)
		}
		if err != nil {
			return err
		}
		proved("%s: closed", w.what)
	}
	return nil
}

func (s *stage) neighbour(ctx context.Context) (string, error) {
	if out, code, err := s.inside(ctx, "neighbour", "true", false); err != nil || code != 0 {
		return "", fmt.Errorf("starting a second sandbox: %w %s", err, out)
	}
	out, err := s.quiet(ctx, "", "sandbox", "ls")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 4 && f[0] == "neighbour" {
			return f[4], nil
		}
	}
	return "", fmt.Errorf("the second sandbox is not listed: %s", out)
}

func remembered(ctx context.Context, s *stage) error {
	if _, _, err := s.show(ctx, "echo \"- The user prefers tabs.\" >> /memory/memories.md"); err != nil {
		return err
	}
	for _, verb := range []string{"stop", "start"} {
		fmt.Println("$ sallyport sandbox " + verb + " demo")
		out, err := s.quiet(ctx, "", "sandbox", verb, "demo")
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		fmt.Print("  " + out)
	}
	out, code, err := s.show(ctx, "cat /memory/memories.md")
	if err == nil {
		err = want(code == 0 && strings.Contains(out, "prefers tabs"), "exit %d, %q", code, out)
	}
	if err != nil {
		return err
	}
	proved("still there, and a file on this side, beside the sandbox's record")
	return nil
}

func recorded(ctx context.Context, s *stage) error {
	fmt.Println("$ sallyport audit tail --sandbox demo")
	out, err := s.quiet(ctx, "", "audit", "tail", "--sandbox", "demo")
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	for line := range strings.Lines(out) {
		fmt.Print("  " + line)
	}
	for _, must := range []string{"api.example.test", "unlisted.example.test", "169.254.169.254", "198.51.100.10"} {
		if err := want(strings.Contains(out, must), "no record of %s", must); err != nil {
			return err
		}
	}
	if err := want(!strings.Contains(out, s.key), "the key is in the audit"); err != nil {
		return err
	}
	proved("decision and outcome, with the rule and the credential's name")
	return nil
}
