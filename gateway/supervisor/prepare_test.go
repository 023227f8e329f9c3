package supervisor

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/gateway/access"
	"sallyport/gateway/placeholder"
	"sallyport/gateway/workerapi"
	"sallyport/policy"
)

// proxied is a house whose process is an explicit proxy to one upstream.
type proxied struct {
	*house
	allow   policy.Document
	client  *http.Client
	url     string
	arrived atomic.Int64
}

func newProxied(t *testing.T, taken string, change ...func(*Options)) *proxied {
	t.Helper()
	p := &proxied{}
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		p.arrived.Add(1)
		_, _ = io.WriteString(w, "hello")
	}))
	t.Cleanup(up.Close)
	p.url = up.URL
	at := netip.MustParseAddrPort(up.Listener.Addr().String())
	p.allow = policy.Document{Policy: policy.Source{Timeout: new(policy.Duration(time.Second))}, Egress: []policy.EgressRule{{
		Destination: at.Addr().String() + "/32", Ports: []uint16{at.Port()}, Plain: true,
		Upstream: &policy.Upstream{Addresses: []string{"127.0.0.0/8"}},
	}}}
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	const token = "token"
	sum := sha256.Sum256([]byte(token))
	p.house = newHouse(t, p.allow, taken, func(o *Options) {
		o.Listeners.Explicit = l
		o.Clients = func() []access.Client {
			return []access.Client{{Name: "ci", ID: "ci", Digest: hex.EncodeToString(sum[:])}}
		}
		for _, f := range change {
			f(o)
		}
	})
	via := &url.URL{Scheme: "http", User: url.UserPassword("ci", token), Host: l.Addr().String()}
	p.client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{Proxy: http.ProxyURL(via), DisableKeepAlives: true}}
	return p
}

// fetch says what a client is answered.
func (p *proxied) fetch() (string, error) { return p.get(p.url) }

func (p *proxied) get(url string) (string, error) {
	resp, err := p.client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return fmt.Sprintf("%d %s", resp.StatusCode, body), err
}

// use is what a reload does.
func (p *proxied) use(t *testing.T, doc policy.Document) error {
	t.Helper()
	revision := compiled(t, doc)
	err := p.supervisor.Prepare(t.Context(), doc, revision, time.Millisecond)
	if err == nil {
		p.supervisor.Use(doc, revision)
	}
	return err
}

// A process that has been taken over cannot keep a policy out that takes a
// destination away: it is ended, and the one that follows it has that policy.
func TestPolicyAgainstTheProcess(t *testing.T) {
	for _, taken := range []string{"", "refuses to prepare", "refuses to prepare, and spins", "never prepares", "dies preparing", "refuses to use", "never uses"} {
		t.Run(taken, func(t *testing.T) {
			// Where another has to be asked, this one cannot get in its way. It stands
			// still for milliseconds, which on a busy machine may pass unseen.
			want := strings.HasPrefix(taken, "refuses to prepare") || taken == "never prepares"
			got := overrule(t, taken)
			for tries := 1; want && !got && tries < 5; tries++ {
				got = overrule(t, taken)
			}
			if got != want {
				t.Errorf("the process stood still: %v", got)
			}
		})
	}
}

// overrule changes the policy against a process, and tells whether that was seen to
// stand still.
func overrule(t *testing.T, taken string) (still bool) {
	t.Helper()
	p := newProxied(t, taken)
	if got, err := p.fetch(); got != "200 hello" {
		t.Fatalf("before: %s, %v", got, err)
	}
	was := p.supervisor.Status().PID
	if strings.HasPrefix(taken, "never") {
		p.supervisor.patience = 300 * time.Millisecond
	}
	began := time.Now()
	stood := standsStill(t, was)
	if err := p.use(t, policy.Document{}); err != nil {
		t.Fatalf("the policy is refused: %v", err)
	}
	still = stood()
	if d := time.Since(began); d > startWithin/2 {
		t.Errorf("it took %v", d)
	}
	p.supervisor.patience = workerapi.AnswerWithin
	left := p.arrived.Load()
	// A connection that was in the queue of the one that was ended is reset.
	var got string
	var err error
	for deadline := time.Now().Add(time.Minute); got == "" && time.Now().Before(deadline); {
		got, err = p.fetch()
	}
	if !strings.HasPrefix(got, "403 ") {
		t.Errorf("after: %.100s, %v", got, err)
	}
	if n := p.arrived.Load(); n != left {
		t.Errorf("%d requests left after the policy was in force", n-left)
	}
	status := p.supervisor.Status()
	if (status.PID == was) != (taken == "") {
		t.Errorf("the process was %d and is %d", was, status.PID)
	}
	if blamed := strings.Contains(status.Failure, "did not do as told"); !blamed && taken != "" && taken != "dies preparing" {
		t.Errorf("the status says %q", status.Failure)
	}
	// Its follower takes policies as ever.
	is := p.supervisor.Status().PID
	if err := p.use(t, p.allow); err != nil {
		t.Fatal(err)
	}
	if got, err := p.fetch(); got != "200 hello" {
		t.Errorf("allowed again: %.100s, %v", got, err)
	}
	if now := p.supervisor.Status().PID; now != is {
		t.Errorf("the process was %d and is %d", is, now)
	}
	return still
}

// standsStill watches a process until the function that it returns is called,
// which says whether the process has been stopped in the meantime.
func standsStill(t *testing.T, pid int) func() bool {
	t.Helper()
	done, stopped := make(chan struct{}), make(chan bool)
	go func() {
		seen := false
		for {
			select {
			case <-done:
				stopped <- seen
				return
			case <-time.After(time.Millisecond):
				stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
				seen = seen || strings.Contains(string(stat), ") T ")
			}
		}
	}()
	return func() bool { close(done); return <-stopped }
}

// A placeholder that is removed is text like any other.
func TestPlaceholderIsRemoved(t *testing.T) {
	const text = "sp_0123456789abcdef0123456789abcdef"
	held := []placeholder.Held{{Credential: "key", Text: text, Public: 6}}
	p := newProxied(t, "", func(o *Options) {
		o.Identities = func() map[netip.Addr]policy.Sandbox {
			return map[netip.Addr]policy.Sandbox{netip.MustParseAddr("192.0.2.1"): {Name: "ci", ID: "ci"}}
		}
		o.Placeholders = func(string) []placeholder.Held { return held }
	})
	if got, err := p.get(p.url + "/?q=" + text); !strings.HasPrefix(got, "403 ") {
		t.Errorf("held: %.100s, %v", got, err)
	}
	held = nil
	p.supervisor.Placeholders()
	if got, err := p.get(p.url + "/?q=" + text); got != "200 hello" {
		t.Errorf("removed: %.100s, %v", got, err)
	}
}

// A policy that no process can compile stays out, and ends none.
func TestPolicyThatIsBad(t *testing.T) {
	p := newProxied(t, "")
	was := p.supervisor.Status().PID
	other := compiled(t, policy.Document{}) // not what it is prepared for
	doc := p.allow
	doc.Egress = append(doc.Egress[:1:1], policy.EgressRule{Destination: "other.example.test"})
	err := p.supervisor.Prepare(t.Context(), doc, other, time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "did its files change just now?") {
		t.Errorf("got %v", err)
	}
	if got, err := p.fetch(); got != "200 hello" {
		t.Errorf("the policy of before: %.100s, %v", got, err)
	}
	if is := p.supervisor.Status(); is.PID != was || is.Restarts != 0 {
		t.Errorf("the process was %d and is %+v", was, is)
	}
}
