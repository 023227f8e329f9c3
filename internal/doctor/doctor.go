// Package doctor checks the host: what Sallyport needs, what there is, and how to fix what
// is missing. It changes nothing and starts nothing but `runsc --version`. It cannot find
// problems that show only at run time, such as a kernel that refuses the datapath's
// programs.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/audit/retention"
	"sallyport/internal/api"
	"sallyport/internal/config"
	"sallyport/internal/jail"
	"sallyport/internal/seal"
)

// Level is the severity of a finding.
type Level string

const (
	OK   Level = "ok"
	Warn Level = "warn" // works, with less
	Fail Level = "fail" // sallyport up would refuse
)

// Finding is one requirement, the state of the host, and how to fix it.
type Finding struct {
	Name  string `json:"name"`
	Level Level  `json:"level"`
	Found string `json:"found"`
	Fix   string `json:"fix,omitempty"`
}

// Options of Examine.
type Options struct {
	Config *config.Config
	// Runsc, Agent and Tarball are the paths of gVisor's runsc, sallyport-agent
	// and the base image; empty when not found.
	Runsc, Agent, Tarball string
	// Vault asks the configured Vault server how it is; nil when none is configured.
	Vault func(context.Context) error
	// Sinks asks the daemon how the sinks of the audit log are; nil when none is
	// configured.
	Sinks func(context.Context) ([]api.Sink, error)
}

// Examine runs the checks that apply to the configuration.
func Examine(ctx context.Context, opt Options) []Finding {
	fs := []Finding{root(opt.Config.Engine)}
	switch c := opt.Config; c.Engine.Kind {
	case "none":
	case "pods":
		fs = append(fs, kernel(release()), btf(), bpffs(), bridgeNetfilter(), subnet(c.Network))
	default:
		fs = append(fs, kernel(release()), btf(), cgroup(), bpffs(), bridgeNetfilter(), engine(c.Engine), appArmor("/"),
			runsc(ctx, opt.Runsc), tarball(opt.Tarball, c.Sandbox.Image), agent(opt.Agent), subnet(c.Network))
	}
	fs = append(fs, disk(opt.Config.DataDir), key(opt.Config), gatewayUser(opt.Config.Gateway), seccomp(), landlock(), auditLog(ctx, opt.Config))
	if opt.Vault != nil {
		fs = append(fs, vault(ctx, opt.Vault))
	}
	if opt.Sinks != nil {
		fs = append(fs, sinks(ctx, opt.Sinks)...)
	}
	return fs
}

func root(e config.Engine) Finding {
	switch {
	case os.Geteuid() == 0:
		return Finding{"user", OK, "root", ""}
	case e.Kind == "none":
		return Finding{"user", Warn, fmt.Sprintf("uid %d", os.Geteuid()), "as root the gateway's process has a user and a root of its own"}
	}
	return Finding{"user", Fail, fmt.Sprintf("uid %d", os.Geteuid()), "run as root: the datapath and the engine need it"}
}

// oldest kernel with tcx links (commit e420bed02507, Linux 6.6).
const minMajor, minMinor = 6, 6

// release is the kernel's, as uname -r shows it.
func release() string {
	var u unix.Utsname
	_ = unix.Uname(&u) // fails for a bad pointer alone
	return unix.ByteSliceToString(u.Release[:])
}

func kernel(release string) Finding {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return Finding{"kernel", Warn, release, "its version could not be read; Linux 6.6 or newer is needed"}
	}
	if major < minMajor || major == minMajor && minor < minMinor {
		return Finding{"kernel", Fail, release, "Linux 6.6 or newer is needed, for tcx links: Debian 13, Ubuntu 24.04 and Fedora have one; on Debian 12: apt-get install -t bookworm-backports linux-image-amd64"}
	}
	return Finding{"kernel", OK, release, ""}
}

// gatewayUser says whom the process runs as that reads hostile bytes.
func gatewayUser(c config.Gateway) Finding {
	const name = "gateway's user"
	ids, err := jail.Lookup(c.User)
	if err != nil {
		return Finding{name, Fail, err.Error(), "set gateway.user to a user that nothing else has, or leave it out"}
	}
	if c.User == "" && ids.UID == jail.Nobody {
		return Finding{name, OK, fmt.Sprintf("number %d, since there is no user %s", ids.UID, jail.DefaultUser), ""}
	}
	return Finding{name, OK, fmt.Sprintf("uid %d, gid %d", ids.UID, ids.GID), ""}
}

func seccomp() Finding {
	const path = "/proc/sys/kernel/seccomp/actions_avail"
	if v, err := os.ReadFile(path); err != nil || !strings.Contains(string(v), "kill_process") {
		return Finding{"seccomp", Fail, "no kill_process in " + path, "a kernel with CONFIG_SECCOMP_FILTER=y is needed"}
	}
	return Finding{"seccomp", OK, "filters", ""}
}

func landlock() Finding {
	if v := jail.Landlock(); v > 0 {
		return Finding{"Landlock", OK, "version " + strconv.Itoa(v), ""}
	}
	return Finding{"Landlock", Warn, "not there", "a second wall around the gateway's process: CONFIG_SECURITY_LANDLOCK=y, and landlock in lsm= on the kernel's command line"}
}

func btf() Finding {
	const path = "/sys/kernel/btf/vmlinux"
	if _, err := os.Stat(path); err != nil {
		return Finding{"BTF", Warn, "no " + path, "a kernel with CONFIG_DEBUG_INFO_BTF=y lets tools name what the programs do; Sallyport's own need only the UAPI"}
	}
	return Finding{"BTF", OK, path, ""}
}

// mounts reads /proc/self/mounts: what is mounted where is never assumed.
func mounts(fstype string) (points []string) {
	text, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[2] == fstype {
			points = append(points, fields[1])
		}
	}
	return points
}

func cgroup() Finding {
	v1, v2 := mounts("cgroup"), mounts("cgroup2")
	err := jail.MemoryLimits()
	switch {
	case err != nil && len(v1)+len(v2) > 0:
		return Finding{"cgroup", Warn, "none can be made for the memory of the gateway's process: " + err.Error(), "mount the controller for memory; else GOMEMLIMIT alone bounds it"}
	case len(v1) > 0:
		return Finding{"cgroup", OK, fmt.Sprintf("version 1 (%d controllers)", len(v1)), ""}
	case len(v2) > 0:
		return Finding{"cgroup", OK, "version 2 at " + v2[0], ""}
	}
	return Finding{"cgroup", Fail, "none mounted", "mount -t cgroup2 none /sys/fs/cgroup"}
}

func bpffs() Finding {
	if m := mounts("bpf"); len(m) > 0 {
		return Finding{"bpffs", OK, m[0], ""}
	}
	if _, err := os.Stat("/sys/fs/bpf"); err != nil {
		return Finding{"bpffs", Fail, "no /sys/fs/bpf", "a kernel with CONFIG_BPF_SYSCALL=y is needed"}
	}
	return Finding{"bpffs", OK, "not mounted; sallyport up mounts it at /sys/fs/bpf", ""}
}

func engine(c config.Engine) Finding {
	if c.Kind == "existing" {
		path := strings.TrimPrefix(c.Host, "unix://")
		conn, err := net.DialTimeout("unix", path, time.Second)
		if err != nil {
			return Finding{"Docker", Fail, err.Error(), "start that engine, or use engine.kind: private"}
		}
		_ = conn.Close()
		return Finding{"Docker", OK, "engine at " + path, ""}
	}
	path, err := exec.LookPath("dockerd")
	if err != nil {
		return Finding{"Docker", Fail, "no dockerd on PATH", "make setup, or apt-get install docker.io"}
	}
	if _, err := exec.LookPath("containerd"); err != nil {
		return Finding{"Docker", Fail, "no containerd on PATH", "make setup, or apt-get install containerd"}
	}
	return Finding{"Docker", OK, path + ", for a private instance", ""}
}

// appArmor looks for what loads Docker's profile, below root. An engine before Docker 23
// asks the kernel alone whether there is AppArmor, and starts no container without it.
func appArmor(root string) Finding {
	const name = "AppArmor"
	enabled, err := os.ReadFile(filepath.Join(root, "sys/module/apparmor/parameters/enabled"))
	if err != nil || !strings.HasPrefix(string(enabled), "Y") {
		return Finding{name, OK, "not in use", ""}
	}
	path, err := exec.LookPath("apparmor_parser")
	if err != nil {
		return Finding{name, Warn, "in use, and no apparmor_parser on PATH", "apt-get install apparmor, or Docker before 23 starts no sandbox"}
	}
	return Finding{name, OK, path, ""}
}

func runsc(ctx context.Context, path string) Finding {
	if path == "" {
		return Finding{"gVisor", Fail, "no runsc", "make setup builds it, or set engine.runsc"}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return Finding{"gVisor", Fail, path + ": " + err.Error(), "make setup builds it anew"}
	}
	version, _, _ := strings.Cut(string(out), "\n")
	return Finding{"gVisor", OK, path + ", " + version, ""}
}

func tarball(path, image string) Finding {
	if path == "" {
		return Finding{"base image", Warn, "no base.tar", "make setup makes it, or set sandbox.tarball, or load " + image + " into the engine yourself"}
	}
	if _, err := os.Stat(path); err != nil {
		return Finding{"base image", Fail, err.Error(), "make setup makes it, or set sandbox.tarball"}
	}
	return Finding{"base image", OK, path, ""}
}

func agent(path string) Finding {
	if path == "" {
		return Finding{"agent", Fail, "no sallyport-agent beside sallyport", "make build"}
	}
	return Finding{"agent", OK, path, ""}
}

func subnet(c config.Network) Finding {
	name := "subnet " + c.Subnet.String()
	ifs, err := net.Interfaces()
	if err != nil {
		return Finding{name, Warn, err.Error(), "the host's addresses could not be compared with it"}
	}
	for _, i := range ifs {
		if i.Name == c.Bridge {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue // it is gone by now
		}
		for _, a := range addrs {
			if n, err := netip.ParsePrefix(a.String()); err == nil && n.Overlaps(c.Subnet) {
				return Finding{name, Fail, fmt.Sprintf("%s has %s", i.Name, n), "set network.subnet to a range that the host does not use"}
			}
		}
	}
	return Finding{name, OK, "free", ""}
}

func bridgeNetfilter() Finding {
	const path = "/proc/sys/net/bridge/bridge-nf-call-iptables"
	v, err := os.ReadFile(path)
	if err != nil {
		return Finding{"bridge netfilter", OK, "not loaded", ""}
	}
	if strings.TrimSpace(string(v)) == "0" {
		return Finding{"bridge netfilter", OK, "off", ""}
	}
	return Finding{"bridge netfilter", OK, "on (another engine's); the datapath steers on the bridge device, where it does no harm", ""}
}

// minFree is about what the engine's copy of the base image and the first
// sandboxes take, in bytes.
const minFree = 2 << 30

func disk(dir string) Finding {
	at := dir
	for {
		if _, err := os.Stat(at); err == nil || at == "/" {
			break
		}
		at = filepath.Dir(at)
	}
	var s unix.Statfs_t
	if err := unix.Statfs(at, &s); err != nil {
		return Finding{"disk", Fail, err.Error(), "make " + dir + " reachable"}
	}
	free := s.Bavail * uint64(s.Bsize)
	found := strconv.FormatUint(free>>30, 10) + " GiB free at " + at
	if free < minFree {
		return Finding{"disk", Warn, found, "free at least 2 GiB, or set dataDir to another disk"}
	}
	return Finding{"disk", OK, found, ""}
}

func key(c *config.Config) Finding {
	if _, err := os.Stat(filepath.Join(c.DataDir, seal.Marker)); err == nil {
		// Nothing is made where something was sealed already.
		if _, err := seal.Open(c.KeyFile, c.DataDir); err != nil {
			return Finding{"key", Fail, err.Error(), ""}
		}
		return Finding{"key", OK, c.KeyFile, ""}
	}
	i, err := os.Stat(c.KeyFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Finding{"key", OK, c.KeyFile + " will be made on the first start", ""}
	case err != nil:
		return Finding{"key", Fail, err.Error(), "set keyFile to a path that can be read"}
	case i.Mode().Perm()&0o077 != 0:
		return Finding{"key", Fail, fmt.Sprintf("%s has mode %v", c.KeyFile, i.Mode().Perm()), "chmod 600 " + c.KeyFile}
	}
	return Finding{"key", OK, c.KeyFile, ""}
}

// auditLog says what there is of the log, and what keeps it.
func auditLog(ctx context.Context, c *config.Config) Finding {
	const name = "audit log"
	st, err := retention.Look(ctx, c.AuditDir())
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && st.Segments == 0:
		return Finding{name, OK, "none yet", ""}
	case err != nil:
		return Finding{name, Warn, err.Error(), "see docs/operate/audit-retention.md"}
	}
	f := Finding{name, OK, strings.Join(st.Lines(), "; "), ""}
	if most := c.Audit.Retention.Bytes; most > 0 && st.Bytes > int64(most)+c.Audit.SegmentSize {
		f.Level, f.Fix = Warn, "it has more than audit.retention.bytes: `sallyport status` says whether a hold or a sink keeps it"
	}
	return f
}

// sinks says how each sink of the audit log is.
func sinks(ctx context.Context, ask func(context.Context) ([]api.Sink, error)) (list []Finding) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	all, err := ask(ctx)
	if err != nil {
		return []Finding{{"audit sinks", Warn, "not known: " + err.Error(), "start the daemon: sallyport up"}}
	}
	for _, s := range all {
		f := Finding{"audit sink " + s.Name, OK, "", ""}
		var ok bool
		if f.Found, ok = s.State(); !ok {
			f.Level, f.Fix = Warn, "see docs/operate/sinks.md, and try: sallyport audit sink test "+s.Name
		}
		list = append(list, f)
	}
	return list
}

func vault(ctx context.Context, health func(context.Context) error) Finding {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := health(ctx); err != nil {
		return Finding{"Vault", Warn, err.Error(), "requests that need a Vault secret fail closed until then"}
	}
	return Finding{"Vault", OK, "answers, unsealed, token accepted", ""}
}
