package kubernetes

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// initName is what a test binary is called that is to be a node's PID 1.
const initName = "sallyport-test-node"

// The folders of a node that are copies of the machine's: what a node writes is in a folder
// of the node's disk. Overlays cannot lie on overlays, so that containerd has a folder of
// the disk itself.
var (
	copied = []string{"etc", "opt", "var"}
	own    = []string{"var/lib/containerd", "var/lib/kubelet"}
)

// Kernel settings that a kubelet writes. They are the machine's, so that a node has files in
// their place. The values are those that the kubelet wants (its --protect-kernel-defaults).
var settings = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

func init() {
	if os.Args[0] != initName {
		return
	}
	if err := boot(os.Args[1], os.Args[2]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	// The kernel reaps what processes leave to PID 1 when nobody waits for children.
	signal.Ignore(syscall.SIGCHLD)
	fmt.Println(booted)
	for {
		unix.Pause()
	}
}

// booted is what PID 1 says when its namespaces are ready.
const booted = "booted"

// boot makes the mounts of a node with this name and disk.
func boot(name, disk string) error {
	err := errors.Join(unix.Sethostname([]byte(name)),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("proc", "/proc", "proc", 0, ""))
	if err != nil {
		return err
	}
	if err := mountSys(disk); err != nil {
		return fmt.Errorf("/sys: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for path, value := range settings {
		file := filepath.Join("/run", filepath.Base(path))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := unix.Mount(file, "/proc/sys/"+path, "", unix.MS_BIND, ""); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	for _, dir := range copied {
		upper, work := filepath.Join(disk, dir), filepath.Join(disk, "work", dir)
		if err := errors.Join(os.MkdirAll(upper, 0o755), os.RemoveAll(work), os.MkdirAll(work, 0o755)); err != nil {
			return err
		}
		if err := unix.Mount("overlay", "/"+dir, "overlay", 0, "lowerdir=/"+dir+",upperdir="+upper+",workdir="+work); err != nil {
			return fmt.Errorf("/%s: %w", dir, err)
		}
	}
	for _, dir := range own {
		from := filepath.Join(disk, "own", dir)
		if err := errors.Join(os.MkdirAll(from, 0o711), os.MkdirAll("/"+dir, 0o711)); err != nil {
			return err
		}
		if err := unix.Mount(from, "/"+dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("/%s: %w", dir, err)
		}
	}
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "") // with the node's own containers
}

// mountSys has /sys show the node's network and a BPF file system of its own. The cgroups are the
// machine's.
func mountSys(disk string) error {
	const groups = "/sys/fs/cgroup"
	aside := filepath.Join(disk, "cgroup")
	err := errors.Join(os.MkdirAll(aside, 0o755),
		unix.Mount(groups, aside, "", unix.MS_BIND|unix.MS_REC, ""),
		unix.Mount("sysfs", "/sys", "sysfs", 0, ""),
		unix.Mount(aside, groups, "", unix.MS_BIND|unix.MS_REC, ""),
		unix.Unmount(aside, unix.MNT_DETACH))
	if err != nil {
		return err
	}
	return unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, "mode=700")
}
