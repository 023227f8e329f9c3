package docker

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"sallyport/sandbox/docker/process"
)

// maxSocket is what fits in sockaddr_un's path, see unix(7).
const maxSocket = 107

// layout knows where the files of a private engine are.
type layout EngineConfig

func (l layout) dir() string              { return filepath.Join(l.DataDir, "engine") }
func (l layout) run() string              { return filepath.Join(l.RunDir, "engine") }
func (l layout) logs() string             { return filepath.Join(l.DataDir, "logs") }
func (l layout) bin() string              { return filepath.Join(l.dir(), "bin") }
func (l layout) containerdConfig() string { return filepath.Join(l.dir(), "containerd.toml") }
func (l layout) dockerdConfig() string    { return filepath.Join(l.dir(), "daemon.json") }
func (l layout) containerdSocket() string { return filepath.Join(l.run(), "containerd.sock") }
func (l layout) dockerSocket() string     { return filepath.Join(l.run(), "docker.sock") }
func (l layout) handshakes() string       { return filepath.Join(l.RunDir, "restore") }
func (l layout) dockerPID() string        { return filepath.Join(l.run(), "docker.pid") }

// write makes folders, start shims and configuration, and says whether the
// configuration has changed.
func (l layout) write() (bool, error) {
	for _, dir := range []string{l.DataDir, l.RunDir, l.Runsc, l.Pins} {
		if !filepath.IsAbs(dir) {
			return false, fmt.Errorf("%q is not an absolute path", dir)
		}
	}
	if len(l.containerdSocket()) > maxSocket-len(".ttrpc") {
		return false, fmt.Errorf("runDir %s is too long for a socket's path: choose one below 70 bytes", l.RunDir)
	}
	if info, err := os.Stat(l.Runsc); err != nil || info.Mode()&0o111 == 0 {
		return false, fmt.Errorf("no runsc at %s: run `make setup`, or set engine.runsc", l.Runsc)
	}
	for _, dir := range []string{l.dir(), l.run(), l.logs(), l.bin(), l.handshakes()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return false, err
		}
	}
	runc, err := program("runc")
	if err != nil {
		return false, err
	}
	if err := writeStartShim(l.bin(), "runsc", l.Bridge, l.Pins, l.handshakes(), l.Runsc, runscFlags...); err != nil {
		return false, err
	}
	if err := writeStartShim(l.bin(), "runc", l.Bridge, l.Pins, "/dev/null", runc); err != nil {
		return false, err
	}
	daemon, err := l.daemonJSON()
	if err != nil {
		return false, err
	}
	docker, err := replace(l.dockerdConfig(), daemon, 0o600)
	if err != nil {
		return false, err
	}
	containerd, err := replace(l.containerdConfig(), l.containerdTOML(), 0o600)
	return docker || containerd, err
}

// daemonJSON is dockerd's configuration.
func (l layout) daemonJSON() ([]byte, error) {
	b, err := json.MarshalIndent(map[string]any{
		"hosts":      []string{"unix://" + l.dockerSocket()},
		"containerd": l.containerdSocket(),
		"data-root":  filepath.Join(l.dir(), "docker"),
		"exec-root":  filepath.Join(l.run(), "docker"),
		"pidfile":    l.dockerPID(),
		"log-level":  "warn",
		// Everything about packets is the datapath's.
		"bridge":     "none",
		"iptables":   false,
		"ip-masq":    false,
		"ip-forward": false,
		// Without the proxy, which runs for published ports only, the bridge
		// driver would turn on route_localnet, which lets a sandbox address
		// the host's loopback, and hairpin mode on every port.
		"userland-proxy": true,
		"live-restore":   true,
		"experimental":   true, // checkpoints
		// Engine 29 stores images in containerd by default, where commit and
		// diff behave differently.
		"features":        map[string]bool{"containerd-snapshotter": false},
		"runtimes":        map[string]any{"runsc": map[string]string{"path": filepath.Join(l.bin(), "runsc")}},
		"default-runtime": "runsc",
	}, "", "\t")
	if err != nil {
		return nil, err
	}
	return append(b, '\n'), nil
}

// containerdTOML is containerd's configuration. Version 2 is read by containerd
// 1.3 to 2.x.
func (l layout) containerdTOML() []byte {
	return fmt.Appendf(nil, `version = 2
root = %s
state = %s
disabled_plugins = ["io.containerd.grpc.v1.cri"]

[grpc]
address = %s

[debug]
level = "warn"

[plugins."io.containerd.internal.v1.opt"]
path = %s
`,
		strconv.Quote(filepath.Join(l.dir(), "containerd")),
		strconv.Quote(filepath.Join(l.run(), "containerd")),
		strconv.Quote(l.containerdSocket()),
		strconv.Quote(filepath.Join(l.dir(), "opt")))
}

// environment of the engine's processes: nothing of ours, and the start shims
// come first on PATH, since the name "runc" cannot be redefined in the configuration
// and a container may be created with any shim that looks for its runtime there.
func (l layout) environment() []string {
	return []string{
		"PATH=" + l.bin() + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root",
	}
}

func (l layout) containerd() (*part, error) {
	return l.part("containerd", []string{"--config", l.containerdConfig()}, func() error { return nil })
}

// dockerd begins without the file of its number: a killed one leaves it, and the next
// refuses to start when the number belongs to any process by then.
func (l layout) dockerd() (*part, error) {
	return l.part("dockerd", []string{"--config-file", l.dockerdConfig()}, func() error { return removeFile(l.dockerPID()) })
}

func (l layout) part(name string, args []string, clean func() error) (*part, error) {
	path, err := program(name)
	if err != nil {
		return nil, err
	}
	return &part{
		Process: process.Process{Name: name, Path: path, Args: args, Env: l.environment(), Log: filepath.Join(l.logs(), name+".log")},
		clean:   clean,
	}, nil
}
