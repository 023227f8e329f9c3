package docker

import (
	"context"
	"crypto/ed25519"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/agent/wire"
)

// The engine of these tests: its own bridge, subnet and folders. Nothing that
// runs on it is guarded by a datapath, so nothing here sends packets.
const (
	testBridge = "spdk0"
	testImage  = "sallyport/test:base"
)

var (
	testSubnet  = netip.MustParsePrefix("10.232.0.0/24")
	testGateway = netip.MustParseAddr("10.232.0.1")

	shared     *testEngine // nil for an ordinary user
	privileged = os.Getuid() == 0
)

// testEngine is an engine with a runtime and an image, shared by the tests.
type testEngine struct {
	dir     string
	bridge  int
	cfg     EngineConfig
	engine  *Engine
	runtime *Runtime
	next    atomic.Int32
	key     ed25519.PrivateKey // that agents know
	sleeper string             // the program of ./testdata/sleeper
}

func TestMain(m *testing.M) {
	os.Exit(func() int {
		flag.Parse()
		if privileged && !fuzzing() {
			l, err := open()
			if l != nil {
				defer l.close()
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, "preparing the engine:", err)
				return 1
			}
			shared = l
		}
		code := m.Run()
		if shared != nil {
			shared.close()
		}
		if err := goleak.Find(); err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return code
	}())
}

// fuzzing says whether this process fuzzes, or is one of many that help: then
// it needs no engine, of which there is one.
func fuzzing() bool {
	for _, name := range []string{"test.fuzz", "test.fuzzworker"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != f.DefValue {
			return true
		}
	}
	return false
}

// need returns the laboratory, or skips: but not in CI.
func need(t *testing.T) *testEngine {
	t.Helper()
	if shared == nil {
		must.Lack(t, "needs root for an engine of its own")
	}
	return shared
}

func open() (*testEngine, error) {
	dir, err := os.MkdirTemp("", "spdk")
	if err != nil {
		return nil, err
	}
	l := &testEngine{dir: dir}
	if err := l.link(); err != nil {
		return l, err
	}
	runsc, err := cached("runsc")
	if err != nil {
		return l, err
	}
	base, err := cached("base.tar")
	if err != nil {
		return l, err
	}
	agent := filepath.Join(dir, "agent")
	l.sleeper = filepath.Join(dir, "sleeper")
	for path, program := range map[string]string{agent: "sallyport/cmd/sallyport-agent", l.sleeper: "./testdata/sleeper"} {
		build := exec.Command("go", "build", "-o", path, program)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return l, fmt.Errorf("building %s: %w: %s", program, err, out)
		}
	}
	l.cfg = EngineConfig{
		DataDir: filepath.Join(dir, "data"),
		RunDir:  filepath.Join(dir, "run"),
		Runsc:   runsc,
		Bridge:  testBridge,
		Pins:    filepath.Join(dir, "pins"),
		Log:     slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	if err := os.Mkdir(l.cfg.Pins, 0o700); err != nil {
		return l, err
	}
	if err := l.pin(); err != nil {
		return l, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if l.engine, err = StartEngine(ctx, l.cfg); err != nil {
		return l, err
	}
	if _, l.key, err = ed25519.GenerateKey(nil); err != nil {
		return l, err
	}
	l.runtime, err = New(ctx, l.engine, Config{
		Bridge:  testBridge,
		Subnet:  testSubnet,
		Gateway: testGateway,
		Agent:   agent,
		Dir:     filepath.Join(dir, "runtime"),
		Image:   testImage,
		Runtime: "runsc",
		Pids:    4096,
		HostKey: channel.Public(l.key),
		Log:     l.cfg.Log,
	})
	if err != nil {
		return l, err
	}
	return l, l.engine.Images().Ensure(ctx, testImage, base)
}

// cached finds what internal/setup/setup.sh has made.
func cached(name string) (string, error) {
	root, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	path, err := filepath.EvalSymlinks(filepath.Join(root, "sallyport", name))
	if err != nil {
		return "", fmt.Errorf("run internal/setup/setup.sh test: %w", err)
	}
	return path, nil
}

func (l *testEngine) link() error {
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: testBridge}}
	if old, err := netlink.LinkByName(testBridge); err == nil {
		if err := netlink.LinkDel(old); err != nil {
			return err
		}
	}
	if err := netlink.LinkAdd(br); err != nil {
		return err
	}
	l.bridge = br.Attrs().Index
	addr, err := netlink.ParseAddr(netip.PrefixFrom(testGateway, testSubnet.Bits()).String())
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(br, addr); err != nil {
		return err
	}
	return netlink.LinkSetUp(br)
}

func (l *testEngine) pinPath() string {
	return filepath.Join(l.cfg.Pins, fmt.Sprintf("bridge-%d", l.bridge))
}

func (l *testEngine) pin() error { return os.WriteFile(l.pinPath(), nil, 0o600) }

// close ends what open began. It is called twice when a test fails to prepare.
func (l *testEngine) close() {
	if l.dir == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if l.runtime != nil {
		ids, _ := l.list(ctx)
		for _, id := range ids {
			l.runtime.Remove(ctx, id)
		}
	}
	if l.engine != nil {
		if err := l.engine.Stop(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "stopping the engine:", err)
		}
	}
	if br, err := netlink.LinkByName(testBridge); err == nil {
		netlink.LinkDel(br)
	}
	l.unmount()
	if err := os.RemoveAll(l.dir); err != nil {
		fmt.Fprintln(os.Stderr, "cleaning up:", err)
	}
	l.dir = ""
}

// unmount takes away what a killed engine and runsc leave mounted.
func (l *testEngine) unmount() {
	mounts, _ := os.ReadFile("/proc/self/mounts")
	lines := strings.Split(string(mounts), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if f := strings.Fields(lines[i]); len(f) > 1 && strings.HasPrefix(f[1], l.dir+"/") {
			unix.Unmount(f[1], unix.MNT_DETACH)
		}
	}
}

// container returns the description of a new sandbox.
func (l *testEngine) container(t *testing.T, image string) sandbox.Container {
	t.Helper()
	n := byte(l.next.Add(1)) + 9
	return sandbox.Container{
		ID:      fmt.Sprintf("id%d", n),
		Name:    fmt.Sprintf("%s-%d", strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")), n),
		Spec:    sandbox.Spec{Image: image},
		Address: netip.PrefixFrom(address(n), testSubnet.Bits()),
		Gateway: testGateway,
		MAC:     fmt.Sprintf("02:42:0a:e8:00:%02x", n),
	}
}

// create makes a sandbox that the test's end removes.
func (l *testEngine) create(t *testing.T, c sandbox.Container) string {
	t.Helper()
	if _, err := l.runtime.Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.runtime.Remove(context.Background(), c.ID)
	})
	return c.ID
}

// Start makes and starts a sandbox.
func (l *testEngine) start(t *testing.T, c sandbox.Container) string {
	t.Helper()
	id := l.create(t, c)
	if _, err := l.runtime.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	return id
}

// sh runs a script, which must succeed, and returns its output.
func (l *testEngine) sh(t *testing.T, id, script string) string {
	t.Helper()
	out, code := l.try(t, id, script)
	if code != 0 {
		t.Fatalf("script %q ended with %d: %s", script, code, out)
	}
	return strings.TrimSpace(out)
}

// try runs a script and returns its output of both kinds, and exit code.
func (l *testEngine) try(t *testing.T, id, script string) (string, int) {
	t.Helper()
	var out strings.Builder
	code, err := l.exec(t.Context(), id, wire.Command{Args: []string{"/bin/sh", "-c", script}}, wire.Streams{Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatalf("script %q: %v", script, err)
	}
	return out.String(), code
}

// exec runs a command by the sandbox's agent.
func (l *testEngine) exec(ctx context.Context, id string, c wire.Command, s wire.Streams) (int, error) {
	var n byte
	if _, err := fmt.Sscanf(id, "id%d", &n); err != nil {
		return 0, err
	}
	agent := channel.New(address(n), channel.Options{Key: l.key})
	defer agent.Close()
	c.ID = uuid.NewString()
	end, err := agent.Run(ctx, c, s)
	return end.Code, err
}

func address(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 232, 0, n}) }

// output runs a program on the host.
func output(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	return string(out), err
}
