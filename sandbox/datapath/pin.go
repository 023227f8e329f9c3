package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

const bpffs = "/sys/fs/bpf"

// errGone says that a pinned link's interface no longer exists.
var errGone = errors.New("the interface is gone")

const (
	hookBridge = "bridge"
	hookIn     = "in"
	hookOut    = "out"
)

// pin is a pinned link.
type pin struct {
	path string
	hook string
	link int // interface index
}

// GuardPin is the path of the pinned link that guards the bridge with an interface index.
// While it exists, that device has the default-deny program. A former device of the same
// name has another index.
func GuardPin(pins string, ifindex int) string {
	return filepath.Join(pins, hookBridge+"-"+strconv.Itoa(ifindex))
}

func portPin(pins, hook string, ifindex int) string {
	return filepath.Join(pins, hook+"-"+strconv.Itoa(ifindex))
}

func listPins(folder string) ([]pin, error) {
	files, err := os.ReadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("listing the pinned links: %w", err)
	}
	var pins []pin
	for _, f := range files {
		hook, index, ok := strings.Cut(f.Name(), "-")
		ifindex, err := strconv.Atoi(index)
		if !ok || err != nil {
			continue // a map
		}
		pins = append(pins, pin{filepath.Join(folder, f.Name()), hook, ifindex})
	}
	return pins, nil
}

// replace swaps the program of a pinned link. errGone: the interface was deleted, and the
// link is on no other, even if another has its index now.
func replace(path string, ifindex int, program *ebpf.Program) error {
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return err
	}
	defer l.Close()
	if !on(l, ifindex) {
		return errGone
	}
	return l.Update(program)
}

// live says whether the pinned link is attached to the interface.
func live(path string, ifindex int) bool {
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return false
	}
	defer l.Close()
	return on(l, ifindex)
}

func on(l link.Link, ifindex int) bool {
	info, err := l.Info()
	if err != nil {
		return false
	}
	tcx := info.TCX()
	return tcx != nil && int(tcx.Ifindex) == ifindex
}

// mountPins makes the folder for pins. It mounts bpffs at its usual place if that is
// missing, as on many hosts without systemd.
func mountPins(folder string) error {
	if !onBPF(folder) && strings.HasPrefix(folder, bpffs+"/") {
		if err := unix.Mount("bpf", bpffs, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
			return fmt.Errorf("mounting bpffs at %s (as root, or mount -t bpf bpf %s): %w", bpffs, bpffs, err)
		}
	}
	if !onBPF(folder) {
		return fmt.Errorf("%s is not on a bpf file system: mount -t bpf bpf %s", folder, filepath.Dir(folder))
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("making the folder for pins: %w", err)
	}
	return nil
}

// onBPF reports whether the nearest existing folder above path is on a bpffs.
func onBPF(path string) bool {
	for ; path != "/"; path = filepath.Dir(path) {
		var fs unix.Statfs_t
		if err := unix.Statfs(path, &fs); err == nil {
			return fs.Type == unix.BPF_FS_MAGIC
		}
	}
	return false
}
