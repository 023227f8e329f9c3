package e2e

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/doctest"
	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

var update = flag.Bool("update", false, "write what the commands of a document print into it")

// terminal is a shell in a folder, with the programs on its path. Exported variables and the
// folder outlast a command.
type terminal struct {
	dir, state string
	suffix     string // of a sallyport.yaml: where its daemon has everything
	env        []string
}

func newTerminal(t *testing.T, dir string, env ...string) *terminal {
	t.Helper()
	opa, err := exec.Command("../setup/opa/build.sh").Output()
	if err != nil {
		t.Fatal("building OPA:", err)
	}
	s := &terminal{dir: dir, state: t.TempDir()}
	s.env = append(os.Environ(), append(env, "PATH="+tools.Dir+":"+filepath.Dir(strings.TrimSpace(string(opa)))+":"+os.Getenv("PATH"),
		"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "TZ=UTC", "LC_ALL=C.UTF-8")...)
	return s
}

// Write puts a file beside its place first, as who deploys one does.
func (s *terminal) Write(file, text string) error {
	if file == "sallyport.yaml" {
		text += s.suffix
	}
	path := filepath.Join(s.dir, file)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(path+"~", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(path+"~", path)
}

// Run does not wait for what a command leaves behind.
func (s *terminal) Run(command string) (shown string, err error) {
	out, err := os.CreateTemp(s.state, "out")
	if err != nil {
		return "", err
	}
	defer out.Close()
	if strings.HasPrefix(command, "git add") && strings.Contains(command, " commit ") {
		// Git dates commits by the second, and what was decided in the second of one
		// counts as decided since.
		time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
	}
	const script = `cd "$(cat "$STATE/folder" 2>/dev/null || echo .)" && . "$STATE/exports" 2>/dev/null
eval "$COMMAND"
status=$?
pwd > "$STATE/folder"; export -p | grep -v ' \(COMMAND\|STATE\)=' > "$STATE/exports"
exit $status`
	c := exec.Command("bash", "-c", script)
	c.Dir, c.Env = s.dir, append(s.env, "HOME="+s.state, "STATE="+s.state, "COMMAND="+command)
	c.Stdout, c.Stderr = out, out
	err = c.Run()
	text, rerr := os.ReadFile(out.Name())
	switch {
	case rerr != nil:
		return "", rerr
	case err != nil && len(text) > 0: // it says so
		err = nil
	}
	return strings.ReplaceAll(string(text), s.dir, "…"), err
}

// follow plays a document of docs/.
func follow(t *testing.T, name string, s doctest.Actor, guide bool) {
	t.Helper()
	file := filepath.Join("../../docs", name)
	text, err := os.ReadFile(file)
	must.OK(t, err)
	faults, mended, ran := doctest.Follow(string(text), s)
	for _, fault := range faults {
		if errors.Is(fault, doctest.ErrUnused) && !guide {
			continue // internal/config reads it
		}
		t.Errorf("%s, %v", file, fault)
	}
	if ran == 0 {
		t.Errorf("%s shows no command", file)
	}
	if *update && mended != string(text) {
		must.OK(t, os.WriteFile(file, []byte(mended), 0o644))
	}
}

// acme serves the hosts of the guide, and writes their authority.
func acme(t *testing.T, dir, token string) {
	t.Helper()
	host := testnet.NewHost(t, testnet.Config{Name: "acme", Address: netip.MustParsePrefix(upstreamAddress + "/24")})
	ca, err := testnet.NewCA()
	must.OK(t, err)
	must.OK(t, os.WriteFile(filepath.Join(dir, "acme.pem"), ca.PEM(), 0o600))
	root := t.TempDir()
	seedRepository(t, root)
	for _, name := range []string{"app.git", "payroll.git"} {
		must.OK(t, os.CopyFS(filepath.Join(root, name), os.DirFS(filepath.Join(root, "repo.git"))))
	}
	git, err := testnet.Git(root)
	must.OK(t, err)
	zone := map[string][]netip.Addr{}
	for _, name := range []string{"git.acme.example", "pypi.acme.example", "api.acme.example"} {
		zone[name] = []netip.Addr{netip.MustParseAddr(upstreamAddress)}
	}
	if _, err := host.DNS(zone); err != nil {
		t.Fatal(err)
	}
	sites := hostMux{"git.acme.example": git, "pypi.acme.example": newMirror(t, "web", "forms", "router", "sessions", "templates", "events", "queue", "cache", "leftpad")}
	if _, err := host.HTTPS(ca, 443, sites.orElse(testnet.API(testnet.KeyOf(token))), "git.acme.example", "pypi.acme.example", "api.acme.example"); err != nil {
		t.Fatal(err)
	}
}

// TestGuide follows docs/start/security-teams.md from nothing to its end.
func TestGuide(t *testing.T) {
	testnet.Privileged(t)
	tools.Need(t)
	dir := t.TempDir()
	acme(t, dir, "sk-acme-0000000000000000")
	s := newTerminal(t, dir)
	t.Cleanup(func() { // also after a failure
		if out, err := s.Run("sallyport down"); t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "data/logs/sallyport.log"))
			fmt.Println(out, err, string(log))
		}
	})
	follow(t, "start/security-teams.md", s, true)
}

// pageBase is where the daemon of the other documents has everything.
const pageBase = `
# where this daemon has everything
dataDir: data
runDir: run
keyFile: key/key
metrics: {listen: "off"}
`

// loading has the daemon load a configuration as soon as it is written.
type loading struct{ *terminal }

func (l loading) Write(file, text string) error {
	if err := l.terminal.Write(file, text); err != nil {
		return err
	}
	_, err := l.Run("sallyport reload || true") // a document may show one that is refused
	return err
}

// rego writes the Rego of a document before it is followed: the configurations above
// it name its folder.
func rego(t *testing.T, name string, s *terminal) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs", name))
	must.OK(t, err)
	for _, b := range doctest.Blocks(string(text)) {
		if b.Kind != "rego" {
			continue
		}
		must.OK(t, s.Write(b.Name(), b.Text))
	}
}

// TestPolicyPages follows the documents that need a daemon and its sandboxes, one
// after the other.
func TestPolicyPages(t *testing.T) {
	testnet.Privileged(t)
	tools.Need(t)
	dir := t.TempDir()
	s := newTerminal(t, dir, "SALLYPORT_CONFIG="+filepath.Join(dir, "sallyport.yaml"))
	s.suffix = pageBase
	must.OK(t, s.Write("sallyport.yaml", ""))
	if out, err := s.Run("sallyport up --detach"); err != nil || !strings.Contains(out, "is up") {
		t.Fatal(out, err)
	}
	t.Cleanup(func() {
		if out, err := s.Run("sallyport down"); err != nil {
			t.Error(out, err)
		}
	})
	if out, err := s.Run("sallyport run agent -- true"); out != "" || err != nil {
		t.Fatal(out, err)
	}
	for _, name := range []string{
		"policy/first-policy.md", "policy/rollout.md", "policy/bodies.md", "policy/approvals.md", "policy/limits.md", "policy/live.md",
	} {
		t.Run(name, func(t *testing.T) {
			for _, file := range []string{"policy.d", "candidate.yaml", "answer.txt"} {
				must.OK(t, os.RemoveAll(filepath.Join(dir, file)))
			}
			must.OK(t, os.Mkdir(filepath.Join(dir, "policy.d"), 0o700))
			rego(t, name, s)
			follow(t, name, loading{s}, false)
		})
	}
}
