package gateway_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"sallyport/gateway"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/engine"
)

// searching lets MCP's tool search be called, alone and in batches, and nothing
// be changed by GraphQL.
const searching = `package sallyport.team.calls

messages contains message if {
	not is_array(input.request.body.json)
	message := input.request.body.json
}

messages contains message if some message in input.request.body.json

deny contains "no other tool than search" if {
	some message in messages
	message.method == "tools/call"
	not message.params.name == "search"
}

deny contains "reading only" if {
	some operation in input.request.body.graphql.operations
	operation.type != "query"
}
`

// bodyEnv is a netEnv whose policy sees bodies, with an upstream that keeps what it
// gets.
type bodyEnv struct {
	*netEnv
	origin *origin
	engine *engine.Engine
	doc    policy.Document

	mu  sync.Mutex
	got []string // bodies of requests that came to their end
	all atomic.Int64
}

func newBodyEnv(t *testing.T, version string, secure bool, options ...option) *bodyEnv {
	t.Helper()
	engine := &engine.Engine{}
	j := &bodyEnv{engine: engine, netEnv: newNetEnv(t, append([]option{func(o *gateway.Options) { o.Decider = engine }}, options...)...)}
	j.origin = j.netEnv.origin("mcp.example.test", version, secure)
	j.origin.handle("/", func(w http.ResponseWriter, r *http.Request) {
		j.all.Add(1)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		j.got = append(j.got, string(body))
		if r.Header.Get("Expect") != "" {
			w.Header().Set("X-Expect", "yes")
		}
		fmt.Fprint(w, "ok ", r.Trailer.Get("X-Late"))
	})
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "calls.rego"), []byte(searching), 0o600))
	to := fmt.Sprintf("mcp.example.test:%d", j.origin.port)
	j.doc = policy.Document{
		Egress: []policy.EgressRule{
			{Name: "mcp", Destination: to, Plain: !secure, Methods: []string{"POST"}, Paths: []string{"/mcp"}, Body: &policy.BodyView{JSON: 64 << 10}, Upstream: j.reach},
			{Name: "graph", Destination: to, Plain: !secure, Paths: []string{"/graphql"}, Body: &policy.BodyView{GraphQL: 64 << 10}, Upstream: j.reach},
			{Name: "all", Destination: to, Plain: !secure, Upstream: j.reach},
		},
		Policy: policy.Source{Dir: dir},
	}
	j.load(t)
	return j
}

// load makes the document the policy.
func (j *bodyEnv) load(t *testing.T) {
	t.Helper()
	p, err := engine.Compile(t.Context(), j.doc, engine.Options{Timeout: patience})
	must.OK(t, err)
	j.engine.Swap(p)
	j.gateway.Redecide()
}

// taken returns what has come to the upstream since it was last asked.
func (j *bodyEnv) taken() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	got := j.got
	j.got = nil
	return got
}

// quiet fails where some event, as the audit has it, holds a word of a body.
func (j *bodyEnv) silent(t *testing.T, word string) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.netEnv.mu.Lock()
	defer j.netEnv.mu.Unlock()
	for _, e := range j.events {
		if text, err := json.Marshal(e); err != nil || bytes.Contains(text, []byte(word)) {
			t.Errorf("%s is in %s (%v)", word, text, err)
		}
	}
}

func toolCall(tool string) string {
	return fmt.Sprintf(`{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": %q, "arguments": {"q": "sesame"}}}`, tool)
}

// gauge is what a metric without labels says.
func (j *bodyEnv) gauge(t *testing.T, name string) float64 {
	t.Helper()
	families, err := j.registry.Gather()
	must.OK(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no %s", name)
	return 0
}
