package manager

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/audit"
	"sallyport/internal/test/model"
	"sallyport/internal/test/ocsf"
	"sallyport/sandbox"
)

// faultHost stands for engine, network, authority and log where a test needs
// one of them to fail at a chosen step; what a healthy one does is tested on
// the real parts. It fails the call named in fault.
type faultHost struct {
	mu         sync.Mutex
	fault      string
	containers map[string]bool // id: running
	endpoints  map[uint32]sandbox.Endpoint
	roots      map[string]bool
	events     []string
	commands   []*audit.Event
	deeds      []deed // what events say
	starts     int
	paused     map[string]bool
	started    map[string]time.Time
	memory     map[string]string // what runs in a container, by id
	build      string
	gate       []string // what the gate was told
	calls      int
	ends       string            // the step in which the daemon ends
	crash      int               // the call that does not return, 0: none
	layers     string            // folder of the containers' files
	parents    map[string]string // of authorities
	limits     sandbox.Spec      // of the last Update
	failing    func() bool       // says whether the next step does, nil: none
	log        []model.Event     // what events tells, and of whom
	ids        map[string]bool   // of events
	ram        string            // folder in memory
	mounted    bool              // which is a file system of its own
	raised     map[string]bool   // what has more memory than it may have, by id
	grown      int64             // bytes that each takes besides its memory
	notes      map[string]string // what is known of a container's last Restore: "asked", "begun", by id
	images     *fakeImages       // of which sandboxes are made, nil: any
	writing    func()            // called as memory is about to be written, nil: nothing
}

// deed is what an event tells.
type deed struct{ Sandbox, ID, Session, State, Detail string }

var errFault = errors.New("a fault of the test's")

func newFaultHost() *faultHost {
	return &faultHost{notes: map[string]string{}, raised: map[string]bool{}, parents: map[string]string{}, paused: map[string]bool{}, started: map[string]time.Time{}, memory: map[string]string{}, build: "1", containers: map[string]bool{}, endpoints: map[uint32]sandbox.Endpoint{}, roots: map[string]bool{}}
}

func (h *faultHost) step(name string) error {
	h.crashes()
	if h.ends == name {
		panic(errCrash)
	}
	if h.fault == name || h.failing != nil && h.failing() {
		return errFault
	}
	return nil
}

func (h *faultHost) crashes() {
	if h.calls++; h.crash > 0 && h.calls >= h.crash { // deferred calls come after it
		panic(errCrash)
	}
}

func (h *faultHost) Create(_ context.Context, c sandbox.Container) (sandbox.Image, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.step("create"); err != nil {
		return sandbox.Image{}, err
	}
	img, err := h.images.of(c)
	if err != nil {
		return sandbox.Image{}, err
	}
	h.containers[c.ID] = false
	return img, h.step("made")
}

func (h *faultHost) Start(_ context.Context, id string) (sandbox.Status, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.step("start"); err != nil {
		return sandbox.Status{}, err
	}
	delete(h.notes, id)
	h.run(id, "fresh")
	return sandbox.Status{Running: true, Link: 7}, h.step("started")
}

func (h *faultHost) Stop(_ context.Context, id string, _ time.Duration) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.containers[id]; ok {
		h.containers[id] = false
		delete(h.memory, id)
	}
	return h.step("stopped")
}

func (h *faultHost) Remove(_ context.Context, id string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.containers[id]; !ok {
		return sandbox.ErrNotFound
	}
	delete(h.containers, id)
	if h.layers != "" {
		return os.RemoveAll(filepath.Join(h.layers, id))
	}
	return nil
}

func (h *faultHost) Status(_ context.Context, id string) (sandbox.Status, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	running, ok := h.containers[id]
	switch {
	case h.fault == "status":
		return sandbox.Status{}, sandbox.ErrEngine
	case !ok:
		return sandbox.Status{}, sandbox.ErrNotFound
	case running:
		return sandbox.Status{Running: true, Paused: h.paused[id], Link: 7, Started: h.started[id]}, nil
	}
	return sandbox.Status{Started: h.started[id]}, nil
}

func (h *faultHost) Update(_ context.Context, id string, limits sandbox.Spec) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.containers[id] {
		return errors.New("it runs")
	}
	if err := h.step("update"); err != nil {
		return err
	}
	h.limits = limits
	return nil
}

func (h *faultHost) Exits(context.Context) (<-chan string, error) { return make(chan string), nil }

func (h *faultHost) Attach(ep sandbox.Endpoint) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.step("attach"); err != nil {
		return err
	}
	h.endpoints[ep.Generation] = ep
	return h.step("attached")
}

func (h *faultHost) Detach(generation uint32) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.endpoints, generation)
	return nil
}

func (h *faultHost) Endpoints() (list []sandbox.Endpoint, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, ep := range h.endpoints {
		list = append(list, ep)
	}
	return list, nil
}

func (h *faultHost) Root(id string) ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.roots[id] = true
	return []byte("root"), h.step("root")
}

func (h *faultHost) Adopt(child, parent string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.step("adopt"); err != nil {
		return err
	}
	h.roots[child], h.parents[child] = true, parent
	return h.step("adopted")
}

func (h *faultHost) Layer(_ context.Context, id string) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.step("layer"); err != nil {
		return "", err
	}
	if _, ok := h.containers[id]; !ok {
		return "", sandbox.ErrNotFound
	}
	dir := filepath.Join(h.layers, id)
	return dir, os.MkdirAll(dir, 0o755)
}

func (h *faultHost) Forget(id string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.roots, id)
	return nil
}

// Enqueue takes events of commands, which change nothing.
func (h *faultHost) Enqueue(e *audit.Event) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.commands = append(h.commands, e)
	return nil
}

func (h *faultHost) Append(_ context.Context, events ...*audit.Event) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	ocsf.Must(events...)
	for _, e := range events {
		x := e.Unmapped.Sallyport
		if err := h.step("record " + x.State); err != nil {
			return err
		}
		h.events = append(h.events, x.Sandbox+" "+x.State)
		h.deeds = append(h.deeds, deed{x.Sandbox, x.SandboxID, x.Session, x.State, e.Detail})
		if h.ids == nil {
			h.ids = map[string]bool{}
		}
		h.ids[e.ID()] = true
		h.log = append(h.log, model.Event{Name: x.Sandbox, ID: x.SandboxID, Session: x.Session, State: x.State})
		h.crashes()
	}
	return nil
}

func (h *faultHost) recorded(_ context.Context, id string) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ids[id], nil
}

func (h *faultHost) Contains(_ context.Context, v string) (string, bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return "key", v == "known secret", h.step("compare")
}

// errCrash is what a call panics with that never returns: the daemon has ended.
var errCrash = errors.New("the daemon ends here")

// ends tells whether the daemon ends in f.
func ends(f func()) (crashed bool) {
	defer func() {
		if p := recover(); p != nil {
			if p != errCrash {
				panic(p)
			}
			crashed = true
		}
	}()
	f()
	return false
}

func (h *faultHost) run(id, memory string) {
	h.containers[id] = true
	h.starts++
	h.started[id] = time.Unix(int64(h.starts), 0)
	h.memory[id] = memory
	h.paused[id] = false
}

func (h *faultHost) Pause(_ context.Context, id string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.step("pause"); err != nil {
		return err
	}
	h.paused[id] = true
	return h.step("paused")
}

func (h *faultHost) Resume(_ context.Context, id string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.step("resume"); err != nil {
		return err
	}
	h.paused[id] = false
	return h.step("resumed")
}

func (h *faultHost) Flows(netip.Addr) []sandbox.Flow { return nil }

func (h *faultHost) Checkpoint(_ context.Context, id, dir string, room int64, leaveRunning bool, whole func()) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := h.resident(id); n > room {
		return fmt.Errorf("%w: %d bytes", sandbox.ErrMemoryBusy, n)
	}
	h.raised[id] = true
	if !leaveRunning {
		h.notes[id] = "asked"
	}
	if err := h.step("checkpoint"); err != nil {
		return err
	}
	if h.writing != nil {
		h.mu.Unlock()
		h.writing()
		h.mu.Lock()
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "checkpoint.img"), []byte(h.memory[id]), 0o600); err != nil {
		return err
	}
	if whole != nil {
		whole()
	}
	if !leaveRunning {
		h.containers[id] = false
		delete(h.memory, id)
	}
	return h.step("checkpointed")
}

// resident is how much of its memory a sandbox has. h.mu is held.
func (h *faultHost) resident(id string) int64 { return int64(len(h.memory[id])) + h.grown }

func (h *faultHost) RestoreMemoryLimit(_ context.Context, id string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	left, _ := filepath.Glob(filepath.Join(h.ram, id+"*"))
	var fs unix.Statfs_t
	taken := h.mounted && (unix.Statfs(h.ram, &fs) != nil || (fs.Blocks-fs.Bfree)*uint64(fs.Bsize) > 1<<20)
	if h.raised[id] && (len(left) > 0 || taken) {
		h.containers[id] = false // as the kernel does with who has more
		delete(h.memory, id)
	}
	delete(h.raised, id)
	return h.step("confine")
}

func (h *faultHost) Restore(_ context.Context, id, dir string, fill func() error) (sandbox.Status, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.step("restore"); err != nil {
		return sandbox.Status{}, err
	}
	h.notes[id] = "asked"
	if fill != nil {
		err := func() error {
			h.mu.Unlock()
			defer h.mu.Lock()
			return fill()
		}()
		if err == nil {
			err = h.step("filled")
		}
		if err != nil {
			return sandbox.Status{}, err
		}
	}
	memory, err := os.ReadFile(filepath.Join(dir, "checkpoint.img"))
	if err != nil {
		return sandbox.Status{}, err
	}
	h.notes[id] = "begun"
	if err := h.step("begun"); err != nil {
		return sandbox.Status{}, errors.Join(err, sandbox.ErrRan)
	}
	h.run(id, string(memory))
	if err := h.step("restored"); err != nil {
		return sandbox.Status{}, errors.Join(err, sandbox.ErrRan)
	}
	delete(h.notes, id)
	return sandbox.Status{Running: true, Link: 7}, nil
}

func (h *faultHost) CancelRestore(_ context.Context, id string) (known bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.step("forgo"); err != nil {
		return false, err
	}
	if h.notes[id] == "begun" {
		return true, sandbox.ErrRan
	}
	return h.notes[id] != "", nil
}

func (h *faultHost) Build(context.Context) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.build, h.step("build")
}

func (h *faultHost) Sleep(context.Context, netip.Addr) []sandbox.Flow {
	h.told("sleep")
	return []sandbox.Flow{{Sandbox: netip.MustParseAddrPort("10.9.0.3:4000"), Peer: netip.MustParseAddrPort("198.51.100.1:443")}}
}

func (h *faultHost) Wake(_ netip.Addr, f []sandbox.Flow) {
	h.told(fmt.Sprintf("wake %d", len(f)))
}

func (h *faultHost) End(netip.Addr) { h.told("end") }

func (h *faultHost) told(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gate = append(h.gate, what)
}
