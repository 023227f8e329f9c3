package ca

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/gateway/mitm"
	"sallyport/internal/durable"
	"sallyport/internal/test/must"
)

// aesSealer is AES-256-GCM with a random nonce.
type aesSealer struct{ cipher.AEAD }

func newSealer(t testing.TB) aesSealer {
	t.Helper()
	key := make([]byte, 32)
	rand.Read(key)
	block, err := aes.NewCipher(key)
	must.OK(t, err)
	aead, err := cipher.NewGCMWithRandomNonce(block)
	must.OK(t, err)
	return aesSealer{aead}
}

func (s aesSealer) Seal(p []byte) ([]byte, error) { return s.AEAD.Seal(nil, nil, p, nil), nil }
func (s aesSealer) Open(c []byte) ([]byte, error) { return s.AEAD.Open(nil, nil, c, nil) }

// authority is an Authority and the leaves that it signs, as the gateway's two
// processes have them.
type authority struct {
	*Authority
	leaves *mitm.Leaves
}

func (a *authority) ServerConfig(id, name string) (*tls.Config, error) {
	return a.leaves.ServerConfig(id, name)
}

func (a *authority) Forget(id string) error {
	err := a.Authority.Forget(id)
	a.leaves.Forget(id)
	return err
}

func open(t testing.TB, dir string, s durable.Sealer) *authority {
	t.Helper()
	a, err := Open(Options{Dir: dir, Sealer: s})
	must.OK(t, err)
	return &authority{a, mitm.NewLeaves(a.Sign, func() time.Time { return a.now() })}
}

func root(t testing.TB, a *authority, id string) []byte {
	t.Helper()
	p, err := a.Root(id)
	must.OK(t, err)
	return p
}

// verify checks the chain that a sandbox is shown as its client would at a time.
func verify(t testing.TB, a *authority, id, name string, roots []byte, at time.Time) error {
	t.Helper()
	c, err := a.ServerConfig(id, name)
	must.OK(t, err)
	pool, inter := x509.NewCertPool(), x509.NewCertPool()
	if !pool.AppendCertsFromPEM(roots) {
		t.Fatal("the root is not PEM")
	}
	chain := c.Certificates[0]
	for _, der := range chain.Certificate[1:] {
		cert, err := x509.ParseCertificate(der)
		must.OK(t, err)
		inter.AddCert(cert)
	}
	_, err = chain.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: pool, Intermediates: inter, CurrentTime: at})
	return err
}

func TestLeafVerifiesForItsNameAndSandboxOnly(t *testing.T) {
	a := open(t, t.TempDir(), newSealer(t))
	rootA, rootB := root(t, a, "a"), root(t, a, "b")
	now := time.Now()
	for _, tt := range []struct {
		name, host string
		roots      []byte
		at         time.Time
		ok         bool
	}{
		{"name", "api.example.test", rootA, now, true},
		{"IPv4", "198.51.100.7", rootA, now, true},
		{"IPv6", "2001:db8::7", rootA, now, true},
		{"long name", strings.Repeat("a23456789.", 25) + "net", rootA, now, true},
		{"underscore", "_x.example.test", rootA, now, true},
		{"client 23 h behind", "api.example.test", rootA, now.Add(-23 * time.Hour), true},
		{"client 5 days ahead", "api.example.test", rootA, now.Add(5 * 24 * time.Hour), true},
		{"after its week", "api.example.test", rootA, now.Add(8 * 24 * time.Hour), false},
		{"another sandbox's root", "api.example.test", rootB, now, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := verify(t, a, "a", tt.host, tt.roots, tt.at)
			if (err == nil) != tt.ok {
				t.Errorf("verifying: %v, want ok %v", err, tt.ok)
			}
		})
	}
	c, err := a.ServerConfig("a", "api.example.test")
	must.OK(t, err)
	leaf := c.Certificates[0].Leaf
	if err := leaf.VerifyHostname("other.example.test"); err == nil {
		t.Error("the leaf is good for another name")
	}
	if d := leaf.NotAfter.Sub(leaf.NotBefore); d > 7*24*time.Hour {
		t.Errorf("leaf lives %v, want 7 days at most", d)
	}
	// The intermediate must not be able to make another authority.
	i, err := a.intermediate("a")
	must.OK(t, err)
	if i.cert.MaxPathLen != 0 || !i.cert.MaxPathLenZero {
		t.Errorf("path length of the intermediate is %d, want 0", i.cert.MaxPathLen)
	}
}

func TestServerConfigRefuses(t *testing.T) {
	a := open(t, t.TempDir(), newSealer(t))
	root(t, a, "a")
	for _, tt := range []struct {
		name, id, host string
		want           error
	}{
		{"sandbox without authority", "b", "example.test", ErrNoAuthority},
		{"empty name", "a", "", mitm.ErrBadName},
		{"wildcard", "a", "*.example.test", mitm.ErrBadName},
		{"space", "a", "exa mple.test", mitm.ErrBadName},
		{"inner wildcard", "a", "a*b.example.test", mitm.ErrBadName},
		{"NUL", "a", "example.test\x00.evil.test", mitm.ErrBadName},
		{"empty label", "a", "example..test", mitm.ErrBadName},
		{"label of 64", "a", strings.Repeat("a", 64) + ".test", mitm.ErrBadName},
		{"254 bytes", "a", strings.Repeat("a.", 126) + "aa", mitm.ErrBadName},
		{"zone", "a", "fe80::1%eth0", mitm.ErrBadName},
		{"hyphen first", "a", "-a.test", mitm.ErrBadName},
		{"not ASCII", "a", "bücher.test", mitm.ErrBadName},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := a.ServerConfig(tt.id, tt.host); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

func TestServerConfigIsCachedByCanonicalName(t *testing.T) {
	a := open(t, t.TempDir(), newSealer(t))
	root(t, a, "a")
	want, err := a.ServerConfig("a", "api.example.test")
	must.OK(t, err)
	for _, name := range []string{"api.example.test", "API.Example.TEST", "api.example.test."} {
		if got, err := a.ServerConfig("a", name); err != nil || got != want {
			t.Errorf("%q: another configuration (%v)", name, err)
		}
	}
}

func TestSigningIsDoneOnce(t *testing.T) {
	a := open(t, t.TempDir(), newSealer(t))
	root(t, a, "a")
	got := make([]any, 32)
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() {
			c, err := a.ServerConfig("a", "api.example.test")
			if err != nil {
				t.Error(err)
			}
			got[i] = c
		})
	}
	wg.Wait()
	for _, c := range got {
		if c != got[0] {
			t.Fatal("two callers got different certificates for one name")
		}
	}
}

func TestRootIsStable(t *testing.T) {
	dir, s := t.TempDir(), newSealer(t)
	a := open(t, dir, s)
	roots := make([][]byte, 16)
	var wg sync.WaitGroup
	for i := range roots {
		wg.Go(func() { roots[i], _ = a.Root("a") })
	}
	wg.Wait()
	for _, r := range roots {
		if len(r) == 0 || !bytes.Equal(r, roots[0]) {
			t.Fatal("concurrent callers got different roots")
		}
	}
	again := open(t, dir, s)
	if got := root(t, again, "a"); !bytes.Equal(got, roots[0]) {
		t.Error("another root after reopening")
	}
	if err := verify(t, again, "a", "api.example.test", roots[0], time.Now()); err != nil {
		t.Errorf("after reopening: %v", err)
	}
}

func TestAdopt(t *testing.T) {
	dir, s := t.TempDir(), newSealer(t)
	a := open(t, dir, s)
	parent := root(t, a, "parent")
	must.OK(t, a.Adopt("child", "parent"))
	if err := a.Adopt("child", "parent"); err != nil {
		t.Errorf("adopting twice: %v", err)
	}
	if got := root(t, a, "child"); !bytes.Equal(got, parent) {
		t.Error("the child's root is not its parent's")
	}
	if err := verify(t, a, "child", "api.example.test", parent, time.Now()); err != nil {
		t.Errorf("the child's leaf under the parent's root: %v", err)
	}
	p, _ := a.ServerConfig("parent", "api.example.test")
	c, _ := a.ServerConfig("child", "api.example.test")
	if bytes.Equal(p.Certificates[0].Certificate[1], c.Certificates[0].Certificate[1]) {
		t.Error("child and parent share an intermediate")
	}
	if err := a.Adopt("x", "nobody"); !errors.Is(err, ErrNoAuthority) {
		t.Errorf("adopted by nobody: %v", err)
	}
	root(t, a, "stranger")
	if err := a.Adopt("stranger", "parent"); err == nil {
		t.Error("a sandbox changed its lineage")
	}

	// The founder goes, the lineage stays with the child, also after reopening.
	must.OK(t, a.Forget("parent"))
	a = open(t, dir, s)
	if got := root(t, a, "child"); !bytes.Equal(got, parent) {
		t.Error("the child lost its root with its parent")
	}
	if _, err := a.ServerConfig("parent", "api.example.test"); !errors.Is(err, ErrNoAuthority) {
		t.Errorf("a forgotten sandbox: %v", err)
	}
	must.OK(t, a.Forget("child"))
	if _, err := os.Stat(filepath.Join(dir, "lineage", "parent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the lineage outlived its last member: %v", err)
	}
}

func TestForgetDropsCachedLeaves(t *testing.T) {
	a := open(t, t.TempDir(), newSealer(t))
	first := root(t, a, "a")
	if _, err := a.ServerConfig("a", "api.example.test"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		must.OK(t, a.Forget("a"))
	}
	if _, err := a.ServerConfig("a", "api.example.test"); !errors.Is(err, ErrNoAuthority) {
		t.Errorf("got %v, want ErrNoAuthority", err)
	}
	if bytes.Equal(root(t, a, "a"), first) {
		t.Error("a forgotten root came back")
	}
}

// TestForgetWinsOverSigning: once Forget has returned, nothing that was being
// signed meanwhile is given out.
func TestForgetWinsOverSigning(t *testing.T) {
	a := open(t, t.TempDir(), newSealer(t))
	for round := range 20 {
		root(t, a, "a")
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() { a.ServerConfig("a", fmt.Sprintf("n%d-%d.example.test", round, i)) })
		}
		must.OK(t, a.Forget("a"))
		for i := range 4 {
			if _, err := a.ServerConfig("a", fmt.Sprintf("n%d-%d.example.test", round, i)); !errors.Is(err, ErrNoAuthority) {
				t.Fatalf("got %v, want ErrNoAuthority", err)
			}
		}
		wg.Wait()
		if n := a.intermediates.Len(); n != 0 {
			t.Fatalf("%d intermediates of a forgotten sandbox are held", n)
		}
	}
}

func TestUnfinishedFilesAreRemoved(t *testing.T) {
	dir, s := t.TempDir(), newSealer(t)
	root(t, open(t, dir, s), "a")
	stray := filepath.Join(dir, "lineage", "a", ".root.pem.tmp-123")
	write(t, stray, []byte("half"))
	open(t, dir, s)
	if _, err := os.Stat(stray); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func TestBadIDs(t *testing.T) {
	a := open(t, t.TempDir(), newSealer(t))
	for _, id := range []string{"", ".", "..", "../x", "a/b", "a b", "-a", "*", strings.Repeat("a", 129)} {
		_, err := a.Root(id)
		for _, err := range []error{err, a.Forget(id), a.Adopt(id, "a")} {
			if !errors.Is(err, errBadID) {
				t.Errorf("%q: %v, want errBadID", id, err)
			}
		}
	}
}

func TestDiskHoldsNoPlainKeyAndNoOpenFile(t *testing.T) {
	dir := t.TempDir()
	a := open(t, dir, newSealer(t))
	root(t, a, "a")
	if _, err := a.ServerConfig("a", "api.example.test"); err != nil {
		t.Fatal(err)
	}
	files := 0
	err := filepath.WalkDir(filepath.Join(dir, "lineage"), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		if d.IsDir() {
			return nil
		}
		files++
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for b, rest := pem.Decode(data); b != nil; b, rest = pem.Decode(rest) {
			if b.Type == blockCertificate {
				continue
			}
			if _, err := x509.ParsePKCS8PrivateKey(b.Bytes); err == nil {
				t.Errorf("%s holds a plain key", path)
			}
		}
		return nil
	})
	must.OK(t, err)
	if files != 2 {
		t.Errorf("%d files, want root and member", files)
	}
}

func TestFailsClosed(t *testing.T) {
	for _, tt := range []struct {
		name   string
		damage func(t *testing.T, file string)
		seal   func(t *testing.T, s durable.Sealer) durable.Sealer
	}{
		{name: "another sealing key", seal: func(t *testing.T, _ durable.Sealer) durable.Sealer { return newSealer(t) }},
		{name: "empty file", damage: func(t *testing.T, f string) { write(t, f, nil) }},
		{name: "cut file", damage: func(t *testing.T, f string) {
			data, _ := os.ReadFile(f)
			write(t, f, data[:len(data)/2])
		}},
		{name: "key of another sandbox", damage: func(t *testing.T, f string) {
			other := filepath.Join(filepath.Dir(f), "..", "b", sandboxPrefix+"b.pem")
			mine, _ := os.ReadFile(f)
			theirs, _ := os.ReadFile(other)
			cert, _ := pem.Decode(mine)
			_, rest := pem.Decode(theirs)
			write(t, f, append(pem.EncodeToMemory(cert), rest...))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			var s durable.Sealer = newSealer(t)
			a := open(t, dir, s)
			root(t, a, "a")
			root(t, a, "b")
			file := filepath.Join(dir, "lineage", "a", sandboxPrefix+"a.pem")
			if tt.damage != nil {
				tt.damage(t, file)
			}
			if tt.seal != nil {
				s = tt.seal(t, s)
			}
			before, _ := os.ReadFile(file)
			a = open(t, dir, s)
			if _, err := a.ServerConfig("a", "api.example.test"); err == nil {
				t.Fatal("signed with a key that is damaged or cannot be unsealed")
			}
			if after, _ := os.ReadFile(file); !bytes.Equal(after, before) {
				t.Error("the file was overwritten")
			}
		})
	}
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	must.OK(t, os.WriteFile(path, data, 0o600))
}

func TestRenewal(t *testing.T) {
	dir, s := t.TempDir(), newSealer(t)
	a := open(t, dir, s)
	roots := root(t, a, "a")
	now := time.Now()
	a.now = func() time.Time { return now }
	seen := map[string]bool{}
	for _, days := range []int{0, 2, 8, 61, 91, 200, 3600} {
		now = time.Now().Add(time.Duration(days) * 24 * time.Hour)
		if err := verify(t, a, "a", "api.example.test", roots, now); err != nil {
			t.Errorf("after %d days: %v", days, err)
		}
		c, err := a.ServerConfig("a", "api.example.test")
		must.OK(t, err)
		serial := c.Certificates[0].Leaf.SerialNumber.String()
		if seen[serial] {
			t.Errorf("after %d days: the leaf was not renewed", days)
		}
		seen[serial] = true
	}
	now = time.Now().Add(rootLife + time.Hour)
	if _, err := a.ServerConfig("a", "api.example.test"); err == nil {
		t.Error("signed below an expired root")
	}
	if _, err := a.Root("a"); err == nil {
		t.Error("gave an expired root to trust")
	}
}

// Whichever way the clock jumps, what a sandbox is shown is good by that clock,
// as far as its root is.
func TestClockJumps(t *testing.T) {
	dir, s := t.TempDir(), newSealer(t)
	a := open(t, dir, s)
	roots := root(t, a, "a")
	const day = 24 * time.Hour
	begun := time.Now()
	now := begun
	a.now = func() time.Time { return now }
	for _, jump := range []time.Duration{0, 366 * day, 0, -backdate / 2, 8 * day, 7 * day, 5 * 366 * day, day, -backdate / 2, 61 * day, time.Hour} {
		now = begun.Add(jump)
		if err := verify(t, a, "a", "api.example.test", roots, now); err != nil {
			t.Errorf("the clock at %v: %v", jump, err)
		}
	}
	// Others that start at the new time read the same.
	b := open(t, dir, s)
	b.now = a.now
	if err := verify(t, b, "a", "api.example.test", roots, now); err != nil {
		t.Error(err)
	}
}

// Before the root is good nothing is, and nothing breaks by that: the clock may be set right.
func TestClockBeforeRoot(t *testing.T) {
	a := open(t, t.TempDir(), newSealer(t))
	roots := root(t, a, "a")
	begun := time.Now()
	now := begun.Add(-backdate - time.Hour)
	a.now = func() time.Time { return now }
	if _, err := a.ServerConfig("a", "api.example.test"); err == nil || !strings.Contains(err.Error(), "set the clock") {
		t.Errorf("before the root is good: %v", err)
	}
	now = begun
	must.OK(t, verify(t, a, "a", "api.example.test", roots, now))
}
