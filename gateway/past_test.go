package gateway_test

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit/auditlog"
	"sallyport/gateway"
	"sallyport/internal/recorded"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// The log has of a decision the input it was made on: a policy can make each again, or is told
// that it cannot.
func TestLogHoldsWhatWasDecidedOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log, err := auditlog.Open(dir, auditlog.Options{})
	must.OK(t, err)
	defer log.Close()
	l := newEnv(t, func(o *gateway.Options) { o.Recorder = log })
	var mu sync.Mutex
	asked := map[string]policy.Input{} // by host and path, or protocol
	key := func(in policy.Input) string {
		if in.Request != nil {
			return string(in.Phase) + in.Destination.Host + in.Request.Path
		}
		return string(in.Phase) + in.Destination.Host + string(in.Protocol)
	}
	l.policy(func(in policy.Input) policy.Decision {
		mu.Lock()
		defer mu.Unlock()
		asked[key(in)] = in
		d := allow(in)
		switch {
		case in.Destination.Host == "refused.example.test":
			return policy.Decision{Action: policy.Deny, Reason: "no rule allows it", Revision: "r1"}
		case in.Destination.Host == "raw.example.test":
			d.Action = policy.Tunnel
		case in.Request != nil && strings.HasPrefix(in.Request.Path, "/no"):
			return policy.Decision{Action: policy.Deny, Reason: "no rule allows it", Revision: "r1"}
		}
		return d
	})
	for _, name := range []string{"api.example.test", "raw.example.test", "refused.example.test"} {
		l.name(name)
		l.upstream(name, true, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	}
	c := l.client()
	do := func(method, url string, body io.Reader, headers ...string) {
		t.Helper()
		r, _ := http.NewRequest(method, url, body)
		for i := 0; i < len(headers); i += 2 {
			r.Header.Add(headers[i], headers[i+1])
		}
		resp, err := c.Do(r)
		must.OK(t, err)
		text(t, resp)
	}
	do("GET", "https://api.example.test/none?b=2&a=1;c", nil, "X-Custom", "1")
	do("POST", "https://api.example.test/sized", strings.NewReader("hello"))
	do("POST", "https://api.example.test/unsized", io.MultiReader(strings.NewReader("hello")))
	do("POST", "https://api.example.test/empty", http.NoBody)
	do("PUT", "https://api.example.test/no", strings.NewReader("hello"))
	many := make([]string, 0, 400)
	for i := range 200 {
		many = append(many, "X-Many-"+strings.Repeat("a", i), "1")
	}
	do("GET", "https://api.example.test/many-headers", nil, many...)
	do("GET", "https://api.example.test/bytes?%ff=1", nil)
	do("GET", "https://api.example.test/more?"+strings.Repeat("k", 300)+"=1", nil)
	do("GET", "https://203.0.113.9/no", nil) // a bare address
	if conn, err := l.secure(l.name("refused.example.test").String()+":443", "refused.example.test"); err == nil {
		conn.Close()
	}
	raw := l.raw(l.name("raw.example.test").String() + ":5432")
	_, _ = raw.Write([]byte("\x00\x01raw bytes"))
	raw.Close()

	// The last may be written after its connection has ended.
	wanted := map[string]policy.Unfit{
		"requestapi.example.test/none": "", "requestapi.example.test/sized": "", "requestapi.example.test/unsized": "",
		"requestapi.example.test/empty": "", "requestapi.example.test/no": "",
		"requestapi.example.test/many-headers": policy.UnfitClipped, "requestapi.example.test/bytes": policy.UnfitClipped,
		"requestapi.example.test/more": policy.UnfitClipped, "request203.0.113.9/no": "",
		"connectrefused.example.testtls": "", "connectraw.example.testother": "",
	}
	var all []policy.Recorded
	for deadline := time.Now().Add(patience); len(all) < len(wanted) && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		all = nil
		for r, err := range recorded.Read(t.Context(), dir, auditlog.Query{}) {
			must.OK(t, err)
			all = append(all, r)
		}
	}
	for _, r := range all {
		unfit, known := wanted[key(r.Input)]
		delete(wanted, key(r.Input))
		if !known || r.Unfit != unfit {
			t.Errorf("%+v %+v: unfit %q, want %q (known: %v)", r.Input, r.Input.Request, r.Unfit, unfit, known)
		}
		if unfit != "" {
			continue
		}
		mu.Lock()
		want := asked[key(r.Input)]
		mu.Unlock()
		if diff := cmp.Diff(r.Input, want, cmp.Transformer("set", func(l []string) []string { return append([]string{}, l...) })); diff != "" {
			t.Errorf("%s: %s", key(r.Input), diff)
		}
		if slices.Contains([]string{"requestapi.example.test/unsized"}, key(r.Input)) && r.Input.Request.Size != -1 {
			t.Errorf("an unknown size is %d", r.Input.Request.Size)
		}
	}
	if len(wanted) > 0 {
		t.Errorf("not in the log: %v", wanted)
	}
}
