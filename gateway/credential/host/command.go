package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"sallyport/gateway/credential"
)

const (
	// commandTTL is how long what a command printed holds, unless it says so itself.
	commandTTL = 30 * time.Second
	// maxOutput bounds what a command prints, in bytes, and maxComplaint what is told of
	// its standard error.
	maxOutput    = 256 << 10
	maxComplaint = 300
)

// Command is what a program prints: one line, which is the field token, or an
// ExecCredential as plugins of kubectl print (client.authentication.k8s.io), with the fields
// token, certificate and key.
type Command struct {
	args []string

	mu      sync.Mutex
	last    map[string]credential.Secret
	version int
}

// NewCommand returns the source of a program and its arguments. It does not run it.
func NewCommand(args []string) *Command { return &Command{args: args} }

// TTL makes the Broker run it again after 30 seconds, or before what it said expires.
func (*Command) TTL() time.Duration { return commandTTL }

// Read runs the program, without a shell, with PATH, HOME and LANG alone in its
// environment and what a plugin of kubectl expects. It is killed, and what it started in its
// process group, when ctx is done.
func (c *Command) Read(ctx context.Context) (credential.Material, error) {
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	cmd.Dir = "/"
	home, err := os.UserHomeDir()
	if err != nil {
		home = "/"
	}
	cmd.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + home, "LANG=C.UTF-8",
		`KUBERNETES_EXEC_INFO={"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","spec":{"interactive":false}}`,
	}
	out, complaint := bounded{most: maxOutput}, bounded{most: 4 << 10}
	cmd.Stdout, cmd.Stderr = &out, &complaint
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err = cmd.Run()
	defer out.zero()
	switch {
	case ctx.Err() != nil:
		return credential.Material{}, fmt.Errorf("%w: %s did not end in time%s", credential.ErrUnavailable, c.args[0], complaint.told(&out))
	case errors.Is(err, exec.ErrNotFound):
		return credential.Material{}, fmt.Errorf("%w: %s is not installed; write its path", credential.ErrRefused, c.args[0])
	case err != nil:
		return credential.Material{}, fmt.Errorf("%w: %s: %w%s", credential.ErrUnavailable, c.args[0], err, complaint.told(&out))
	case out.cut:
		return credential.Material{}, fmt.Errorf("%w: %s prints more than %d bytes", credential.ErrNoSecret, c.args[0], maxOutput)
	}
	m, err := parse(out.kept.Bytes())
	if err != nil {
		return credential.Material{}, fmt.Errorf("%w: %s prints %w", credential.ErrNoSecret, c.args[0], err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !maps.EqualFunc(c.last, m.Fields, func(a, b credential.Secret) bool { return a.Reveal() == b.Reveal() }) {
		c.version++
	}
	c.last = m.Fields
	m.Version = strconv.Itoa(c.version)
	return m, nil
}

// execCredential is what Sallyport reads of an ExecCredential.
type execCredential struct {
	APIVersion string
	Kind       string
	Status     *struct {
		Token                 string
		ClientCertificateData string
		ClientKeyData         string
		ExpirationTimestamp   *time.Time
	}
}

// parse reads what a program printed. Its errors quote none of it.
func parse(out []byte) (credential.Material, error) {
	m := credential.Material{Fields: map[string]credential.Secret{}}
	text := strings.TrimSuffix(strings.TrimSuffix(string(out), "\n"), "\r")
	if !strings.HasPrefix(strings.TrimSpace(text), "{") {
		if text == "" || len(text) > maxValue || strings.ContainsFunc(text, unicode.IsControl) {
			return m, errors.New("neither one line of text nor an ExecCredential in JSON")
		}
		m.Fields["token"] = credential.NewSecret(text)
		return m, nil
	}
	var c execCredential
	if err := json.Unmarshal(out, &c); err != nil || c.Kind != "ExecCredential" || !strings.HasPrefix(c.APIVersion, "client.authentication.k8s.io/") {
		return m, errors.New("JSON that is no ExecCredential of client.authentication.k8s.io")
	}
	if c.Status == nil {
		return m, errors.New("an ExecCredential without status")
	}
	for name, value := range map[string]string{"token": c.Status.Token, "certificate": c.Status.ClientCertificateData, "key": c.Status.ClientKeyData} {
		if len(value) > maxValue {
			return m, fmt.Errorf("a %s of more than %d bytes", name, maxValue)
		}
		if value != "" {
			m.Fields[name] = credential.NewSecret(value)
		}
	}
	if len(m.Fields) == 0 {
		return m, errors.New("an ExecCredential with neither a token nor a certificate")
	}
	if at := c.Status.ExpirationTimestamp; at != nil {
		m.Expires = *at
	}
	return m, nil
}

// bounded keeps the first bytes of what is written.
type bounded struct {
	kept bytes.Buffer
	most int
	cut  bool
}

func (b *bounded) Write(p []byte) (int, error) {
	room := b.most - b.kept.Len()
	if len(p) > room {
		b.cut = true
		_, _ = b.kept.Write(p[:room])
		return len(p), nil
	}
	return b.kept.Write(p)
}

func (b *bounded) zero() { clear(b.kept.Bytes()) }

// told is what a program said on its standard error, on one line, without what it said
// on its standard output.
func (b *bounded) told(out *bounded) string {
	text := b.kept.String()
	for line := range strings.Lines(out.kept.String()) {
		if line = strings.TrimSpace(line); len(line) >= 4 {
			text = strings.ReplaceAll(text, line, "…")
		}
	}
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) || !unicode.IsPrint(r) }), " ")
	if text == "" {
		return ""
	}
	if len(text) > maxComplaint {
		text = strings.ToValidUTF8(text[:maxComplaint], "") + " …"
	}
	return ": it says: " + text
}
