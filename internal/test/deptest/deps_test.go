// Package deptest holds the picture of the repository in the README against its
// imports.
package deptest

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"sallyport/internal/test/must"
)

// fence says that no package below one of the folders from may reach an import
// below to, but for those below except.
type fence struct {
	from   []string
	to     []string
	except []string
	why    string
}

var fences = []fence{
	{from: []string{"gateway/worker", "gateway/workerapi"}, to: []string{
		"sallyport/gateway/supervisor", "sallyport/gateway/ca", "sallyport/gateway/credential/file", "sallyport/gateway/credential/vault", "sallyport/gateway/credential/host", "sallyport/gateway/credential/exchange",
		"sallyport/internal/seal", "sallyport/audit/sink", "sallyport/sandbox", "github.com/hashicorp/vault", "filippo.io/age", "github.com/moby/moby", "github.com/cilium/ebpf",
	}, why: "the privilege boundary: the worker parses what sandboxes and upstreams send, so secrets' stores, the authorities' keys, the engine and the datapath are the supervisor's"},
	{from: []string{"gateway/supervisor"}, to: []string{"sallyport/gateway/worker"}, why: "the supervisor runs none of the worker's code"},
	{from: []string{"gateway"}, to: []string{"sallyport/sandbox", "sallyport/memory"}, why: "the gateway knows sandboxes only as identities that it is given"},
	{from: []string{"memory/history", "memory/search", "memory/secretscan"}, to: []string{"sallyport/sandbox", "sallyport/audit"}, why: "what keeps a memory is given a folder, and says what it found"},
	{from: []string{"sandbox", "memory"}, to: []string{"sallyport/gateway", "sallyport/policy"}, why: "what runs a sandbox has no part in what may leave it"},
	{from: []string{"sandbox/client", "sandbox/docker", "sandbox/datapath", "sandbox/disk", "sandbox/agent", "sandbox/manifest", "sandbox/state", "sandbox/checkpoint", "sandbox/imagetar"}, to: []string{"sallyport/sandbox/manager"}, why: "the manager drives the others, and a client only knows the nouns"},
	{from: []string{"sandbox/client"}, to: []string{"sallyport/internal/jail", "sallyport/sandbox/fsjail"}, why: "a client runs nothing of a sandbox's"},
	{from: []string{"audit"}, to: []string{"sallyport/gateway", "sallyport/policy", "sallyport/sandbox", "sallyport/memory", "sallyport/cmd"}, why: "everybody writes events, so an event imports nothing of theirs"},
	{from: []string{"gateway/worker", "gateway/workerapi"}, to: []string{"sallyport/audit/tree"}, why: "who writes the log has neither its tree nor its key"},
	{from: []string{"policy"}, to: []string{"sallyport/gateway", "sallyport/sandbox", "sallyport/audit"}, why: "a decision depends on its input alone"},
	{from: []string{"policy/oracle"}, to: []string{"sallyport/", "github.com/open-policy-agent/opa", "regexp"}, except: []string{"sallyport/policy/oracle"}, why: "what a policy is compared with has nothing in common with it"},
	{from: []string{"policy/limit"}, to: []string{"sallyport/"}, except: []string{"sallyport/policy/limit", "sallyport/internal/quota"}, why: "what counts knows no policy"},
	{from: []string{"sandbox/agent", "cmd/sallyport-agent"}, to: []string{"sallyport/"}, except: []string{"sallyport/sandbox/agent", "sandbox/agent/channel"}, why: "PID 1 of a sandbox is small and knows nothing worth stealing"},
	{from: []string{""}, to: []string{"github.com/elazarl/goproxy"}, except: []string{"gateway", "internal/api", "internal/bench", "internal/daemon", "cmd/sallyport"}, why: "goproxy's home is gateway; bench measures it bare"},
	{from: []string{""}, to: []string{"github.com/open-policy-agent/opa"}, except: []string{"policy/engine", "policy/rego", "policy/check", "policy/learn", "policy/replay", "policy/regotest", "gateway", "internal", "cmd/sallyport"}, why: "a policy's nouns and its compiled rules are plain Go: OPA is below the engine, which evaluates, and below what reads, checks and tests a team's Rego"},
	{from: []string{""}, to: []string{"github.com/hashicorp/vault"}, except: []string{"gateway/credential/vault", "internal/daemon", "cmd/sallyport"}, why: "Vault's home is its credential source, which the daemon opens"},
	{from: []string{""}, to: []string{"github.com/moby/moby"}, except: []string{"sandbox/docker", "internal/daemon", "cmd/sallyport"}, why: "the engine's home is sandbox/docker, which the daemon opens"},
	{from: []string{""}, to: []string{"github.com/cilium/ebpf"}, except: []string{"sandbox/datapath", "internal/daemon", "cmd/sallyport", "internal/bench"}, why: "eBPF's home is the datapath, which the daemon opens; bench reads its statistics"},
	{from: []string{""}, to: []string{"modernc.org/sqlite"}, except: []string{"audit/index", "memory/history", "memory/search", "memory/layer", "memory/keeper", "memory/client", "internal", "cmd/sallyport", "examples/agent"}, why: "SQLite's homes are the audit's index and the memory's history and index, which the daemon keeps and the API and the command line ask: a log is written and read without it"},
	{from: []string{""}, to: []string{"k8s.io"}, why: "the daemon and the gateway's process are one program: the API's Go types alone make both larger at rest, and a pod's few fields need none"},
	{from: []string{"cmd/sallyport-cni"}, to: []string{"sallyport/", "k8s.io"}, except: []string{"cmd/sallyport-cni", "sallyport/sandbox/pods/cni", "sallyport/internal/durable"}, why: "the CNI plugin runs for each pod: it is small and asks the daemon"},
	{from: []string{""}, to: []string{"sallyport/internal/test"}, except: []string{"internal/test", "internal/e2e", "internal/bench", "examples"}, why: "what only tests use is never in the product"},
	{from: []string{""}, to: []string{"testing"}, except: []string{"internal/test", "internal/e2e", "internal/bench", "policy/regotest", "cmd/sallyport"}, why: "tests are never in the product, but for OPA's runner of a team's own"},
}

// homes are the only packages that import a heavy dependency themselves.
var homes = map[string][]string{
	"github.com/elazarl/goproxy":          {"gateway/proxy", "internal/bench"},
	"github.com/open-policy-agent/opa":    {"policy/engine", "policy/rego", "policy/check", "policy/regotest"},
	"github.com/hashicorp/vault":          {"gateway/credential/vault"},
	"github.com/moby/moby":                {"sandbox/docker"},
	"github.com/cilium/ebpf":              {"sandbox/datapath", "internal/bench"},
	"github.com/pelletier/go-toml":        {"internal/containerd", "memory/secretscan"}, // the configurations of containerd and gitleaks
	"github.com/spf13/cobra":              {"cmd/sallyport", "internal/test/clitest"},
	"github.com/miekg/dns":                {"gateway/resolver", "gateway/upstream", "internal/test/testnet"},
	"filippo.io/age":                      {"internal/seal"},
	"golang.org/x/oauth2":                 {"gateway/credential/exchange"}, // token endpoints
	"github.com/lestrrat-go/jwx":          {"gateway/credential/exchange"}, // JWTs; OPA brings it
	"github.com/vishvananda/netlink":      {"sandbox/datapath", "sandbox/docker", "internal/test/testnet", "internal/test/kubernetes", "internal/bench"},
	"github.com/containernetworking/cni":  {"cmd/sallyport-cni"},
	"github.com/google/nftables":          {"sandbox/datapath"},
	"github.com/landlock-lsm/go-landlock": {"internal/jail"},
	"github.com/klauspost/compress":       {"audit/auditlog", "gateway/credential/decode", "memory/history", "internal/test/ondisk"}, // sealed segments, answers of upstreams, and versions of memories
	"github.com/andybalholm/brotli":       {"gateway/credential/decode"},
	"github.com/coreos/go-systemd":        {"internal/daemon"},
	"sallyport/internal/daemon":           {"internal/daemon", "cmd/sallyport"},
	"github.com/anishathalye/porcupine":   {"internal/test/model"},
	"golang.org/x/net/http2":              {"gateway", "gateway/upstream"},
	"golang.org/x/crypto/ssh":             {"internal/ssh", "gateway/ssh", "gateway/credential", "gateway/ca", "sandbox/docker/trust", "policy/validate", "internal/e2e"},
	"github.com/goccy/go-json":            {"audit/auditlog"},
	"github.com/pkg/sftp":                 {"sandbox/agent"},
	"github.com/jackc/pgx":                {"gateway/postgres"}, // messages of the protocol
	"github.com/xdg-go/scram":             {"gateway/postgres"},
	"golang.org/x/mod":                    {"audit/tree", "audit/sink", "audit/encoding"},
	"modernc.org/sqlite":                  {"internal/sqlite"},
	"github.com/aymanbagabas/go-udiff":    {"memory/history", "cmd/sallyport/policycmd"},
	"github.com/twmb/franz-go":            {"audit/sink"},
	"github.com/minio/minio-go":           {"audit/sink"},
	"go.opentelemetry.io/proto/otlp":      {"audit/sink"},
}

type pkg struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

func packages(t *testing.T) (list []pkg) {
	t.Helper()
	c := exec.Command("go", "list", "-json=ImportPath,Imports,Deps", "sallyport/...")
	out, err := c.Output()
	must.OK(t, err)
	d := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
}

// below says whether an import path is one of the folders or inside one.
func below(path string, folders []string) bool {
	return slices.ContainsFunc(folders, func(f string) bool {
		f = strings.TrimSuffix(f, "/")
		return f == "" || path == f || strings.HasPrefix(path, f+"/")
	})
}

func TestFences(t *testing.T) {
	all := packages(t)
	for _, f := range fences {
		for _, p := range all {
			room := strings.TrimPrefix(p.ImportPath, "sallyport/")
			if !below(room, f.from) || below(room, f.except) {
				continue
			}
			for _, d := range p.Deps {
				if below(d, f.to) && !below(d, f.except) {
					t.Errorf("%s reaches %s: %s", room, d, f.why)
				}
			}
		}
	}
}

// Each package of the product is in the README's map, which has the small ones of internal in
// one line.
func TestMap(t *testing.T) {
	readme, err := os.ReadFile("../../../README.md")
	must.OK(t, err)
	for _, p := range packages(t) {
		room := strings.TrimPrefix(p.ImportPath, "sallyport/")
		if !below(room, []string{"internal", "cmd", "examples"}) && !strings.Contains(string(readme), "]("+room+")") {
			t.Errorf("the README's map lacks %s", room)
		}
	}
}

func TestHomes(t *testing.T) {
	used := map[string]bool{}
	for _, p := range packages(t) {
		room := strings.TrimPrefix(p.ImportPath, "sallyport/")
		for _, i := range p.Imports {
			for dep, rooms := range homes {
				if !below(i, []string{dep}) {
					continue
				}
				used[dep] = true
				if !slices.Contains(rooms, room) && !below(room, rooms) {
					t.Errorf("%s imports %s, whose home is %v", room, i, rooms)
				}
			}
		}
	}
	for dep := range homes {
		if !used[dep] {
			t.Errorf("nothing imports %s: is the house's picture old?", dep)
		}
	}
}
