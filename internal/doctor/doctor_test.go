package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/config"
	"sallyport/internal/seal"
	"sallyport/internal/test/must"
)

func TestKernel(t *testing.T) {
	for release, want := range map[string]Level{
		"6.6.0": OK, "6.12.9-amd64": OK, "7.0.0-rc1": OK, "6.18.44-fc-v657": OK,
		"6.5.13": Fail, "6.1.0-28-amd64": Fail, "5.15.0": Fail,
		"unknown": Warn, "": Warn,
	} {
		if got := kernel(release); got.Level != want || want != OK && got.Fix == "" {
			t.Errorf("%q: got %v, want %s and how to mend it", release, got, want)
		}
	}
	for _, name := range []string{"Debian 13", "Ubuntu 24.04", "Fedora", "Debian 12"} {
		if got := kernel("6.1.0"); !strings.Contains(got.Fix, name) {
			t.Errorf("%q does not say what becomes of %s", got.Fix, name)
		}
	}
}

func TestAppArmor(t *testing.T) {
	root, bin := t.TempDir(), t.TempDir()
	t.Setenv("PATH", bin)
	write := func(path, text string, mode os.FileMode) {
		t.Helper()
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.OK(t, os.WriteFile(path, []byte(text), mode))
	}
	expect := func(when string, want Level) {
		t.Helper()
		if got := appArmor(root); got.Level != want || want != OK && got.Fix == "" {
			t.Errorf("%s: got %v, want %s and how to mend it", when, got, want)
		}
	}
	expect("none in the kernel", OK)
	enabled := filepath.Join(root, "sys/module/apparmor/parameters/enabled")
	write(enabled, "N\n", 0o644)
	expect("off", OK)
	write(enabled, "Y\n", 0o644)
	expect("on, without its program", Warn)
	write(filepath.Join(bin, "apparmor_parser"), "#!/bin/sh\n", 0o755)
	expect("on", OK)
}

// Loopback's address is on every host.
func TestSubnet(t *testing.T) {
	for s, want := range map[string]Level{
		"127.0.0.0/24": Fail, // within loopback's
		"127.0.0.0/7":  Fail, // around it
		"240.0.0.0/24": OK,   // reserved, RFC 1112: no host has it
	} {
		c := config.Network{Bridge: "none0", Subnet: netip.MustParsePrefix(s).Masked()}
		if got := subnet(c); got.Level != want {
			t.Errorf("%s: got %v, want %s", s, got, want)
		}
	}
	own := config.Network{Bridge: "lo", Subnet: netip.MustParsePrefix("127.0.0.0/8")}
	if got := subnet(own); got.Level != OK {
		t.Errorf("the bridge's own: got %v, want ok", got)
	}
}

func TestKey(t *testing.T) {
	for _, tt := range []struct {
		name   string
		meddle func(t *testing.T, key, data string)
		level  Level
		found  string
	}{
		{"first start", func(*testing.T, string, string) {}, OK, "will be made"},
		{"in use", func(t *testing.T, key, data string) { sealed(t, key, data) }, OK, "key"},
		{"lost", func(t *testing.T, key, data string) {
			sealed(t, key, data)
			must.OK(t, os.Remove(key))
		}, Fail, "backup"},
		{"of another host", func(t *testing.T, key, data string) {
			sealed(t, key, data)
			must.OK(t, os.Remove(key))
			sealed(t, key, t.TempDir())
		}, Fail, "not the key"},
		{"open to others", func(t *testing.T, key, _ string) {
			must.OK(t, os.WriteFile(key, nil, 0o644))
		}, Fail, "mode"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file, data := filepath.Join(t.TempDir(), "key"), t.TempDir()
			tt.meddle(t, file, data)
			got := key(&config.Config{KeyFile: file, DataDir: data})
			if got.Level != tt.level || !strings.Contains(got.Found, tt.found) {
				t.Errorf("got %v, want %s with %q", got, tt.level, tt.found)
			}
		})
	}
}

func sealed(t *testing.T, key, data string) {
	t.Helper()
	if _, err := seal.Open(key, data); err != nil {
		t.Fatal(err)
	}
}

// A gateway without sandboxes is not told to install what runs them, and a
// failure always says what to do.
func TestExamine(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct {
		kind  string
		wants []string
	}{
		{"none", []string{"user", "disk", "key", "gateway's user", "seccomp", "Landlock", "audit log", "Vault"}},
		{"existing", []string{"user", "kernel", "BTF", "cgroup", "bpffs", "bridge netfilter", "Docker", "AppArmor", "gVisor", "base image", "agent", "subnet 192.0.2.0/24", "disk", "key", "gateway's user", "seccomp", "Landlock", "audit log", "Vault"}},
		{"private", []string{"user", "kernel", "BTF", "cgroup", "bpffs", "bridge netfilter", "Docker", "AppArmor", "gVisor", "base image", "agent", "subnet 192.0.2.0/24", "disk", "key", "gateway's user", "seccomp", "Landlock", "audit log", "Vault"}},
	} {
		t.Run(tt.kind, func(t *testing.T) {
			c, err := config.Parse(filepath.Join(dir, "sallyport.yaml"), fmt.Appendf(nil,
				"dataDir: %[1]s/data\nkeyFile: %[1]s/key\nnetwork: {subnet: 192.0.2.0/24}\n", dir))
			must.OK(t, err)
			c.Engine = config.Engine{Kind: tt.kind, Host: "unix://" + dir + "/nothing"}
			got := Examine(t.Context(), Options{Config: c, Vault: func(context.Context) error { return errors.New("sealed") }})
			var names []string
			for _, f := range got {
				names = append(names, f.Name)
				if f.Level == Fail && f.Fix == "" {
					t.Errorf("%v says nothing of how to mend it", f)
				}
			}
			if g, w := strings.Join(names, ", "), strings.Join(tt.wants, ", "); g != w {
				t.Errorf("got  %s\nwant %s", g, w)
			}
		})
	}
}

// The audit log's size and what keeps it are told, and more than its bound is a warning.
func TestAuditLog(t *testing.T) {
	c, err := config.Parse(filepath.Join(t.TempDir(), "sallyport.yaml"), []byte("dataDir: data\naudit: {segmentSize: 1048576, retention: {bytes: 1MiB}}\n"))
	must.OK(t, err)
	if f := auditLog(t.Context(), c); f.Level != OK || f.Found != "none yet" {
		t.Error(f)
	}
	must.OK(t, os.MkdirAll(c.AuditDir(), 0o700))
	write := func(name, text string, size int64) {
		t.Helper()
		path := filepath.Join(c.AuditDir(), name)
		must.OK(t, errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Truncate(path, max(size, int64(len(text))))))
	}
	write("00000000000000000001.jsonl", `{"metadata":{"sequence":1},"time":1800000000000}`+"\n", 0)
	if f := auditLog(t.Context(), c); f.Level != OK || !strings.Contains(f.Found, "records from 1 on, of 2027-01-15") {
		t.Error(f)
	}
	write("retention.json", `{"holds":[{"name":"case-7","reason":"court","since":"2027-01-15T08:00:00Z"}]}`, 0)
	write("00000000000000000002.jsonl", "", 3<<20)
	if f := auditLog(t.Context(), c); f.Level != Warn || f.Fix == "" || !strings.Contains(f.Found, "legal holds: 1, the first is case-7") {
		t.Error(f)
	}
	write("retention.json", "{", 0)
	if f := auditLog(t.Context(), c); f.Level != Warn || !strings.Contains(f.Found, "nothing is deleted") {
		t.Error(f)
	}
}
