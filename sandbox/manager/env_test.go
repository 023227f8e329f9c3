package manager

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/seal"
	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/disk"
)

func open(t *testing.T, h *faultHost, dir string) *Manager {
	t.Helper()
	return openWith(t, h, dir, channel.Options{})
}

func openWith(t *testing.T, h *faultHost, dir string, agent channel.Options) *Manager {
	t.Helper()
	m, err := Open(t.Context(), Options{
		Dir: dir, Subnet: netip.MustParsePrefix("10.9.0.0/29"),
		Defaults: sandbox.Spec{Image: "base", Runtime: sandbox.GVisor, Pids: 100},
		Runtime:  h, Network: h, Authority: h, Secrets: h, Recorder: h,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Agent: agent,
	})
	must.OK(t, err)
	return m
}

// bed is a manager that can put sandboxes to sleep.
type bed struct {
	*Manager
	h        *faultHost
	dir, ram string
	key      *seal.Key
	subnet   netip.Prefix // zero: a small one
	boot     string       // "": the host's own
	ramSize  int64        // 0: what the file system holds
	counter  Meter
	memories Memories // nil: nobody keeps them
}

func newBed(t *testing.T) *bed {
	t.Helper()
	return newBedIn(t, t.TempDir())
}

func newBedIn(t *testing.T, dir string) *bed {
	t.Helper()
	key, err := seal.Open(filepath.Join(dir, "key", "key"), filepath.Join(dir, "data"))
	must.OK(t, err)
	b := &bed{h: newFaultHost(), dir: filepath.Join(dir, "sandboxes"), ram: filepath.Join(dir, "ram"), key: key}
	b.h.layers, b.h.ram = filepath.Join(dir, "layers"), b.ram
	must.OK(t, os.Mkdir(b.ram, 0o700))
	b.open(t)
	return b
}

// silentAgents are those of no sandbox: nothing is dialled.
func silentAgents() channel.Options {
	return channel.Options{Dial: func(context.Context, netip.AddrPort) (net.Conn, error) { return nil, errFault }}
}

// open is the next daemon's.
func (b *bed) open(t *testing.T) {
	t.Helper()
	subnet := b.subnet
	if !subnet.IsValid() {
		subnet = netip.MustParsePrefix("10.9.0.0/29")
	}
	m, err := Open(t.Context(), Options{
		Dir: b.dir, Subnet: subnet,
		Defaults: sandbox.Spec{Image: "base", Runtime: sandbox.GVisor, Pids: 100, Disk: disk.Min},
		Disks:    fakeDisks{b.h},
		Runtime:  b.h, Network: b.h, Authority: b.h, Secrets: b.h, Recorder: b.h, Recorded: b.h.recorded,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		RAM:    b.ram, Key: b.key, Gate: b.h, Agent: silentAgents(), boot: b.boot,
		Meter: b.counter, ramSize: b.ramSize, Memories: b.memories,
	})
	must.OK(t, err)
	b.Manager = m
}

// live makes a sandbox that runs and has something in its memory.
func (b *bed) live(t *testing.T, name string) sandbox.Info {
	t.Helper()
	if _, _, err := b.GetOrCreate(t.Context(), name, sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	i, err := b.Start(t.Context(), name)
	must.OK(t, err)
	b.h.memory[i.ID] = "what it was thinking of"
	return i
}

func (b *bed) must(t *testing.T) func(sandbox.Info, error) sandbox.Info {
	return func(i sandbox.Info, err error) sandbox.Info {
		t.Helper()
		must.OK(t, err)
		return i
	}
}

// plain lists files below the folders that hold a sandbox's memory in the clear.
func (b *bed) plain(t *testing.T, dirs ...string) (found []string) {
	t.Helper()
	for _, dir := range dirs {
		_ = filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
			if err == nil && info.Mode().IsRegular() {
				if text, _ := os.ReadFile(path); strings.Contains(string(text), "thinking of") {
					found = append(found, path)
				}
			}
			return nil
		})
	}
	return found
}
