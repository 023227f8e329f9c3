package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/template"
	"time"
)

// upstreamAddress is the test host's, for documentation (RFC 5737).
const upstreamAddress = "198.51.100.10"

// stage is where the demo plays: its folder, its programs and its upstream.
type stage struct {
	bin, dir string
	began    time.Time // when this run's first sandbox was asked for
	config   string
	key      string // the secret that must never be seen
}

func newStage(bin, dir string) (*stage, error) {
	var err error
	for _, p := range []*string{&bin, &dir} {
		if *p, err = filepath.Abs(*p); err != nil {
			return nil, err
		}
	}
	return &stage{bin: bin, dir: dir, config: filepath.Join(dir, "sallyport.yaml")}, nil
}

func (s *stage) path(name string) string { return filepath.Join(s.dir, name) }

var configTemplate = template.Must(template.New("sallyport.yaml").Parse(`# Written by the demo.
dataDir: {{.Dir}}/data
runDir: {{.Dir}}/run
keyFile: {{.Dir}}/key            # in real life: on another disk, or a systemd credential
network: {bridge: sallyport-demo, subnet: 10.230.0.0/24}
metrics: {listen: "127.0.0.1:9465"}

egressAuth:
- destination: "api.example.test"
  authRef: example-api-key
  upstream: {addresses: [198.51.100.10], roots: ca.pem, resolver: "198.51.100.10:53"}
credentials:
- name: example-api-key
`))

// prepare starts the upstream and the daemon, or agrees that they run.
func (s *stage) prepare(ctx context.Context) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	if err := s.secret(); err != nil {
		return err
	}
	if err := s.upstream(ctx); err != nil {
		return fmt.Errorf("starting the test host: %w", err)
	}
	var b bytes.Buffer
	if err := configTemplate.Execute(&b, map[string]string{"Dir": s.dir}); err != nil {
		return err
	}
	if err := os.WriteFile(s.config, b.Bytes(), 0o600); err != nil {
		return err
	}
	if _, err := s.quiet(ctx, "", "status"); err != nil {
		out, err := s.quiet(ctx, "", "up", "--detach")
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		fmt.Println("$ sallyport up --detach\n  " + strings.TrimSpace(out))
	} else if out, err := s.quiet(ctx, "", "reload"); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	// The demo begins anew over the sandboxes of an earlier run.
	for _, name := range []string{"demo", "neighbour", "twin"} {
		if _, err := s.quiet(ctx, "", "sandbox", "get", name); err == nil {
			if out, err := s.quiet(ctx, "", "sandbox", "rm", name); err != nil {
				return fmt.Errorf("%w\n%s", err, out)
			}
		}
	}
	out, err := s.quiet(ctx, s.key, "secret", "set", "example-api-key")
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	fmt.Println("$ sallyport secret set example-api-key < key\n  " + strings.TrimSpace(out))
	return nil
}

// secret makes the key of this run; it is on this side only.
func (s *stage) secret() error {
	path := s.path("upstream-key")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		data = []byte("sk-demo-" + rand.Text())
		err = os.WriteFile(path, data, 0o600)
	}
	s.key = string(data)
	return err
}

// upstream starts the test host unless it runs.
func (s *stage) upstream(ctx context.Context) error {
	if _, ok := s.upstreamPID(); ok {
		return nil
	}
	sites := `{"api.example.test": {"kind": "api"}, "unlisted.example.test": {"kind": "api"}}`
	if err := os.WriteFile(s.path("sites.json"), []byte(sites), 0o600); err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(s.key))
	log, err := os.OpenFile(s.path("testhost.log"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	host := exec.Command(filepath.Join(s.bin, "testhost"), "-name", "demo", "-address", upstreamAddress+"/24",
		"-config", s.path("sites.json"), "-ca", s.path("ca.pem"), "-key-sha256", hex.EncodeToString(sum[:]))
	host.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	host.Stderr = log
	out, err := host.StdoutPipe()
	if err != nil {
		return err
	}
	if err := host.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if strings.TrimSpace(line) != "ready" {
		said, _ := os.ReadFile(s.path("testhost.log"))
		return fmt.Errorf("it is not ready: %s: %w", bytes.TrimSpace(said), err)
	}
	return os.WriteFile(s.path("testhost.pid"), []byte(strconv.Itoa(host.Process.Pid)), 0o600)
}

// upstreamPID finds the test host that an earlier demo started, and only that.
func (s *stage) upstreamPID() (int, bool) {
	data, err := os.ReadFile(s.path("testhost.pid"))
	if err != nil {
		return 0, false
	}
	pid, err := strconv.Atoi(string(data))
	if err != nil {
		return 0, false
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return pid, err == nil && strings.HasPrefix(string(line), filepath.Join(s.bin, "testhost")+"\x00")
}

func (s *stage) down(ctx context.Context) error {
	if _, err := os.Stat(s.config); err != nil {
		fmt.Println("no demo is there")
		return nil
	}
	if _, err := s.quiet(ctx, "", "status"); err == nil {
		out, err := s.quiet(ctx, "", "down")
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		fmt.Print(out)
	}
	if pid, ok := s.upstreamPID(); ok {
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
			return err
		}
		for range 100 { // ten seconds
			if _, ok := s.upstreamPID(); !ok {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		fmt.Println("the test host is down")
	}
	fmt.Printf("what it made is in %s: remove it when you like\n", s.dir)
	return nil
}

// command is sallyport with the demo's configuration.
func (s *stage) command(ctx context.Context, stdin string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, filepath.Join(s.bin, "sallyport"), args...)
	c.Env = append(os.Environ(), "SALLYPORT_CONFIG="+s.config)
	c.Stdin = strings.NewReader(stdin)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	return c
}

// quiet runs sallyport and returns all it printed.
func (s *stage) quiet(ctx context.Context, stdin string, args ...string) (string, error) {
	out, err := s.command(ctx, stdin, args...).CombinedOutput()
	return string(out), err
}
