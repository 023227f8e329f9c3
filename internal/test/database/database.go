// Package database runs Debian's PostgreSQL and Redis on loopback for a test, with a
// certificate of the test's own. A machine without them, or a user who cannot become
// another, skips the test; in CI it fails.
package database

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

// Server is a server that runs.
type Server struct {
	Port uint16 // of TCP on 127.0.0.1

	t      testing.TB
	folder string
	cmd    *exec.Cmd
	cred   *syscall.Credential
	bin    string // folder of PostgreSQL's programs
}

// Front gives each connection to a port of loopback to serve, until the test ends, and fail
// each error of it. It returns the port. Both are called at the same time by several goroutines.
func Front(t testing.TB, serve func(net.Conn) error, fail func(error)) (port int) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				if err := serve(c); err != nil {
					fail(err)
				}
			})
		}
	})
	t.Cleanup(func() { ln.Close(); serving.Wait() })
	return ln.Addr().(*net.TCPAddr).Port
}

// lack skips the test, and fails it in CI.
func lack(t testing.TB, what string) {
	t.Helper()
	must.Lack(t, "needs %s: internal/setup/setup.sh test installs it", what)
}

// account returns the credential of a user of the system.
func account(t testing.TB, name string) *syscall.Credential {
	t.Helper()
	if os.Getuid() != 0 {
		lack(t, "root, since the server refuses to run as its caller")
	}
	u, err := user.Lookup(name)
	if err != nil {
		lack(t, "the user "+name)
	}
	uid, _ := strconv.ParseUint(u.Uid, 10, 32)
	gid, _ := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// Postgres starts PostgreSQL, whose superuser is admin by its unix socket: see SQL. hba are
// lines of pg_hba.conf for TCP, beside the one that wants SCRAM-SHA-256 over TLS. Without a
// leaf it has no TLS.
func Postgres(t testing.TB, leaf *tls.Certificate, hba ...string) *Server {
	t.Helper()
	programs, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(programs) == 0 {
		lack(t, "PostgreSQL")
	}
	s := newServer(t, account(t, "postgres"))
	s.bin = filepath.Dir(slices.Max(programs))
	data := filepath.Join(s.folder, "data")
	init := s.command(filepath.Join(s.bin, "initdb"), "-D", data, "-U", "admin", "--no-sync", "--locale=C.UTF-8", "--auth-local=trust", "--auth-host=reject")
	if out, err := init.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	lines := append([]string{"local all all trust"}, hba...)
	lines = append(lines, "hostssl all all 127.0.0.1/32 scram-sha-256", "host all all 127.0.0.1/32 scram-sha-256", "")
	s.file("data/pg_hba.conf", strings.Join(lines, "\n"))
	args := []string{"-D", data, "-h", "127.0.0.1", "-p", strconv.Itoa(int(s.Port)), "-k", s.folder, "-c", "fsync=off", "-c", "shared_buffers=16MB", "-c", "password_encryption=scram-sha-256"}
	if leaf != nil {
		s.leaf(*leaf)
		args = append(args, "-c", "ssl=on", "-c", "ssl_cert_file="+filepath.Join(s.folder, "cert.pem"), "-c", "ssl_key_file="+filepath.Join(s.folder, "key.pem"))
	}
	s.start(filepath.Join(s.bin, "postgres"), args, syscall.SIGINT)
	must.Soon(t, "PostgreSQL", func() bool { return s.psql("select 1").Run() == nil })
	return s
}

// Redis starts Redis with lines of redis.conf. Without a leaf it has no TLS.
func Redis(t testing.TB, leaf *tls.Certificate, lines ...string) *Server {
	t.Helper()
	// The server's program is part of redis-tools under another name.
	const program = "/usr/bin/redis-check-rdb"
	if _, err := os.Stat(program); err != nil {
		lack(t, "redis-tools")
	}
	s := newServer(t, account(t, "nobody"))
	port := fmt.Sprintf("port %d", s.Port)
	if leaf != nil {
		s.leaf(*leaf)
		port = fmt.Sprintf("port 0\ntls-port %d\ntls-cert-file %[2]s/cert.pem\ntls-key-file %[2]s/key.pem\ntls-ca-cert-file %[2]s/cert.pem\ntls-auth-clients no", s.Port, s.folder)
	}
	s.file("redis.conf", strings.Join(append([]string{port, "bind 127.0.0.1", "save \"\"", "dir " + s.folder}, append(lines, "")...), "\n"))
	s.start(program, []string{filepath.Join(s.folder, "redis.conf")}, syscall.SIGTERM)
	s.listens()
	return s
}

func newServer(t testing.TB, cred *syscall.Credential) *Server {
	t.Helper()
	// Sockets have short paths, and the server's user has to get there.
	folder, err := os.MkdirTemp("", "database")
	must.OK(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	must.OK(t, os.Chown(folder, int(cred.Uid), int(cred.Gid)))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	defer ln.Close()
	return &Server{Port: uint16(ln.Addr().(*net.TCPAddr).Port), t: t, folder: folder, cred: cred}
}

// command is one that the server's user runs.
func (s *Server) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env = s.folder, []string{"PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred}
	return cmd
}

// start runs the server until the test ends.
func (s *Server) start(program string, args []string, stop syscall.Signal) {
	s.t.Helper()
	s.cmd = s.command(program, args...)
	if filepath.Base(program) == "redis-check-rdb" {
		s.cmd.Args[0] = "redis-server" // it goes by its name
	}
	var log bytes.Buffer
	s.cmd.Stdout, s.cmd.Stderr = &log, &log
	s.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	must.OK(s.t, s.cmd.Start())
	s.t.Cleanup(func() {
		_ = s.cmd.Process.Signal(stop)
		_ = s.cmd.Wait()
		if s.t.Failed() {
			s.t.Logf("%s:\n%s", filepath.Base(program), log.String())
		}
	})
}

// Stop ends the server before the test does.
func (s *Server) Stop() {
	_ = s.cmd.Process.Signal(syscall.SIGINT)
	_ = s.cmd.Wait()
}

func (s *Server) listens() {
	s.t.Helper()
	must.Soon(s.t, "a server on loopback", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		c, err := new(net.Dialer).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", s.Port))
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// file writes a file of the server's user.
func (s *Server) file(name, content string) {
	s.t.Helper()
	path := filepath.Join(s.folder, name)
	must.OK(s.t, os.WriteFile(path, []byte(content), 0o600))
	must.OK(s.t, os.Chown(path, int(s.cred.Uid), int(s.cred.Gid)))
}

func (s *Server) leaf(leaf tls.Certificate) {
	s.t.Helper()
	var chain []byte
	for _, der := range leaf.Certificate {
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	key, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
	must.OK(s.t, err)
	s.file("cert.pem", string(chain))
	s.file("key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})))
}

// SQL runs statements as the superuser and returns what psql prints of rows alone.
func (s *Server) SQL(statements ...string) string {
	s.t.Helper()
	out, err := s.psql(statements...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s: %v\n%s", statements, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (s *Server) psql(statements ...string) *exec.Cmd {
	args := []string{"-h", s.folder, "-p", strconv.Itoa(int(s.Port)), "-U", "admin", "-d", "postgres", "-XqAt", "-v", "ON_ERROR_STOP=1"}
	for _, statement := range statements {
		args = append(args, "-c", statement)
	}
	return s.command(filepath.Join(s.bin, "psql"), args...)
}
