package e2e

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sallyport/internal/test/database"
	"sallyport/internal/test/must"
)

// clients copies programs of this host, and the libraries that they load, into a folder.
func clients(t *testing.T, dir string, programs ...string) {
	t.Helper()
	for _, program := range programs {
		path, err := filepath.EvalSymlinks(program)
		must.OK(t, err)
		files := map[string]string{filepath.Base(program): path}
		out, err := exec.Command("ldd", path).Output()
		must.OK(t, err)
		for line := range strings.Lines(string(out)) {
			words := strings.Fields(line)
			// The sandbox has the C library, which is the same.
			if at := slices.Index(words, "=>"); at > 0 && at+1 < len(words) && !strings.HasPrefix(words[0], "libc.so") {
				files[words[0]] = words[at+1]
			}
		}
		for name, from := range files {
			data, err := os.ReadFile(from)
			must.OK(t, err)
			must.OK(t, os.WriteFile(filepath.Join(dir, name), data, 0o755))
		}
	}
}

// relay has the upstream's port lead to a server of the test.
func (r *rig) relay(port int, to uint16) {
	r.t.Helper()
	ln, err := r.host.Listen(port)
	must.OK(r.t, err)
	r.t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", to))
			if err != nil {
				near.Close()
				continue
			}
			for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
				go func() {
					_, _ = io.Copy(way[0], way[1])
					_ = way[0].(interface{ CloseWrite() error }).CloseWrite()
				}()
			}
		}
	}()
}

// psql and redis-cli inside of a sandbox work without a password, which never comes there.
func TestDatabases(t *testing.T) {
	r := newRig(t, "")
	const password = "correct-horse-battery-staple"
	dir := t.TempDir()
	programs, err := filepath.Glob("/usr/lib/postgresql/*/bin/psql")
	must.OK(t, err)
	db, err := r.ca.Leaf("db.example.test")
	must.OK(t, err)
	cache, err := r.ca.Leaf("cache.example.test")
	must.OK(t, err)
	postgres := database.Postgres(t, &db)
	postgres.SQL("create role agent login password '"+password+"'", "create database app owner agent", "create database other owner agent")
	redis := database.Redis(t, &cache, "requirepass the-default-users-own", "user agent on >"+password+" ~* &* +@all")
	clients(t, dir, slices.Max(programs), "/usr/bin/redis-cli")

	const reach = `upstream: {addresses: [198.51.100.10], roots: ca.pem, resolver: "198.51.100.10:53"}`
	rules := strings.Replace(ruleConfig, "egress:", `- {destination: db.example.test, authRef: login, paths: [/app], inject: {postgres: {username: agent, password: "{{ .token }}"}}, `+reach+`}
- {destination: cache.example.test, authRef: login, inject: {redis: {username: agent, password: "{{ .token }}"}}, `+reach+`}
egress:`, 1) + "- name: login\n"
	r.configure(baseConfig, rules)
	addr := netip.MustParseAddr(upstreamAddress)
	_, err = r.host.DNS(map[string][]netip.Addr{"db.example.test": {addr}, "cache.example.test": {addr}})
	must.OK(t, err)
	r.relay(5432, postgres.Port)
	r.relay(6379, redis.Port)
	r.up()
	if res := r.feed(password+"\n", "secret", "set", "login"); res.code != 0 {
		t.Fatal(res)
	}
	r.ok("run", "agent", "--", "true")
	r.ok("sandbox", "cp", "-r", dir, "agent:/root/clients")

	run := func(command string) result {
		return r.inside("agent", "cd /root/clients && export LD_LIBRARY_PATH=. && "+command)
	}
	for command, want := range map[string]string{
		"./psql -h db.example.test -w -X -At -c 'select current_user, current_database()' app":                                                "agent|app",
		"./psql 'host=db.example.test dbname=app sslmode=verify-full sslrootcert=/etc/ssl/certs/ca-certificates.crt' -w -X -At -c 'select 1'": "1",
		"./psql -h db.example.test -w -X -At -c \"select 'correct-horse' || '-battery-staple'\" app":                                          strings.Repeat("*", len(password)),
		"./redis-cli -h cache.example.test acl whoami":                                                                                        "agent",
		"./redis-cli -h cache.example.test --tls --cacert /etc/ssl/certs/ca-certificates.crt ping":                                            "PONG",
	} {
		if res := run(command); res.code != 0 || strings.TrimSpace(res.stdout) != want {
			t.Errorf("%s: %s", command, res)
		}
	}
	if res := run("./psql -h db.example.test -w -X -c 'select 1' other"); res.code == 0 || !strings.Contains(res.stderr, "FATAL:  sallyport: denied: ") {
		t.Errorf("another database: %s", res)
	}
	if res := r.inside("agent", "env; cat /proc/[0-9]*/environ; grep -rsl "+password+" /etc /root /tmp /var && echo found"); strings.Contains(res.stdout, password) || strings.Contains(res.stdout, "found") {
		t.Errorf("the sandbox has the password: %s", res)
	}
	if said := r.ok("audit", "tail", "-n", "50"); !strings.Contains(said, "postgres://db.example.test:5432/app") || !strings.Contains(said, "redis://cache.example.test:6379/") || strings.Contains(said, password) {
		t.Errorf("the audit log says %s", said)
	}
}
