package pods

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"time"

	"sallyport/internal/periodic"
)

// NotReady is the key of the taint that keeps new pods off a node whose daemon does not
// serve (effect NoSchedule).
const NotReady = "sallyport.dev/not-ready"

const (
	// watchFor is how long one watch lasts. Then all pods are listed again, and a Follower
	// is told of each.
	watchFor = 2 * time.Minute
	// leastWait and mostWait are between attempts to reach a server that is away.
	leastWait = 250 * time.Millisecond
	mostWait  = 15 * time.Second
	// maxAnswer bounds an answer, in bytes: the pods of a node are the largest.
	maxAnswer = 64 << 20
)

// Client is a [Cluster]. It needs to get, list and watch pods, and to get and patch nodes.
type Client struct {
	server *url.URL
	http   *http.Client
	token  func() (string, error) // "" with a client's certificate
	log    *slog.Logger
}

// Connect returns a Client, by a kubeconfig file or, with "", by the service account of the
// pod that this process is in. It does not talk to the API server, and refuses one without
// TLS, which would get a token that anybody on the way could read.
func Connect(kubeconfig string, log *slog.Logger) (*Client, error) {
	access, err := readAccess(kubeconfig, log)
	if err != nil {
		return nil, fmt.Errorf("reaching the API server: %w", err)
	}
	server, err := url.Parse(access.server)
	if err != nil || server.Host == "" {
		return nil, fmt.Errorf("reaching the API server: %q is not a URL", access.server)
	}
	if server.Scheme != "https" {
		return nil, fmt.Errorf("reaching the API server: %s is not https, and everybody on the way would read the token: write https://%s as the cluster's server, and its certificate-authority", access.server, server.Host)
	}
	return &Client{server: server, token: access.token, log: log, http: &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, Transport: &http.Transport{
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return (&tls.Dialer{NetDialer: &net.Dialer{Timeout: askWithin}, Config: access.tls()}).DialContext(ctx, network, address)
		},
		ForceAttemptHTTP2: true, IdleConnTimeout: time.Minute,
		// A watch is silent for minutes: this tells a server that is gone from one that has
		// nothing to say.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: askWithin},
	}}}, nil
}

// ask sends a request and returns the body of its answer, which the caller closes.
func (c *Client) ask(ctx context.Context, method, path string, query url.Values, patch []byte) (io.ReadCloser, error) {
	u := c.server.JoinPath(path)
	u.RawQuery = query.Encode()
	r, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(patch))
	if err != nil {
		return nil, err
	}
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", "sallyport")
	if patch != nil {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 300 {
		return resp.Body, nil
	}
	if resp.StatusCode == http.StatusUnauthorized { // a connection keeps a client's certificate that has expired
		defer c.http.CloseIdleConnections()
	}
	defer resp.Body.Close()
	var failed struct{ Message string }
	_ = json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&failed) // else the status says it
	return nil, fmt.Errorf("the API server answers %d to %s %s: %.500q", resp.StatusCode, method, path, cmp.Or(failed.Message, resp.Status))
}

func (c *Client) get(ctx context.Context, path string, query url.Values, v any) error {
	body, err := c.ask(ctx, http.MethodGet, path, query, nil)
	if err != nil {
		return err
	}
	defer body.Close()
	return json.NewDecoder(io.LimitReader(body, maxAnswer)).Decode(v)
}

// Pod implements [Cluster].
func (c *Client) Pod(ctx context.Context, namespace, name string) (*Pod, error) {
	p := new(Pod)
	return p, c.get(ctx, "/api/v1/namespaces/"+url.PathEscape(namespace)+"/pods/"+url.PathEscape(name), nil, p)
}

// Named returns the pods of the name: one, or none.
func (c *Client) Named(ctx context.Context, namespace, name string) ([]*Pod, error) {
	return c.list(ctx, "/api/v1/namespaces/"+url.PathEscape(namespace)+"/pods", "metadata.name="+name)
}

// At returns the pods that have an address. Those of a node's own network have the node's.
func (c *Client) At(ctx context.Context, address netip.Addr) ([]*Pod, error) {
	return c.list(ctx, "/api/v1/pods", "status.podIP="+address.String())
}

func (c *Client) list(ctx context.Context, path, fields string) ([]*Pod, error) {
	var list struct{ Items []*Pod }
	err := c.get(ctx, path, url.Values{"fieldSelector": {fields}}, &list)
	return list.Items, err
}

// Follow implements [Cluster]. It lists the pods, watches for changes, and begins again
// when a watch ends, for whatever reason: so nothing is missed for longer than watchFor.
func (c *Client) Follow(ctx context.Context, node string, f Follower) error {
	t := &tracker{Follower: f, pods: map[string]*Pod{}}
	wait := leastWait
	for {
		err := c.round(ctx, url.Values{"fieldSelector": {"spec.nodeName=" + node}}, t)
		if ctx.Err() != nil {
			return nil
		}
		if wait = min(2*wait, mostWait); err == nil {
			wait = leastWait
		} else {
			c.log.Warn("the node's pods cannot be followed for now: those that run go on, with the labels that they had", "error", err, "retry_in", wait)
		}
		if !periodic.Sleep(ctx, wait) {
			return nil
		}
	}
}

// tracker passes pods on to a Follower, and keeps those that the Follower knows.
type tracker struct {
	Follower
	pods   map[string]*Pod // by UID
	synced bool
}

func (t *tracker) changed(p *Pod) { t.pods[p.UID] = p; t.Changed(p) }

func (t *tracker) gone(p *Pod) { delete(t.pods, p.UID); t.Gone(p) }

// round is a list and the watch after it.
func (c *Client) round(ctx context.Context, query url.Values, t *tracker) error {
	var list struct {
		Metadata struct{ ResourceVersion string }
		Items    []*Pod
	}
	asked, cancel := context.WithTimeout(ctx, askWithin)
	err := c.get(asked, "/api/v1/pods", query, &list)
	cancel()
	if err != nil {
		return err
	}
	missing := maps.Clone(t.pods)
	for _, p := range list.Items {
		delete(missing, p.UID)
		t.changed(p)
	}
	for _, p := range missing {
		t.gone(p)
	}
	if !t.synced {
		t.synced = true
		t.Synced()
	}
	query = maps.Clone(query)
	query.Set("watch", "true")
	query.Set("resourceVersion", list.Metadata.ResourceVersion)
	query.Set("timeoutSeconds", strconv.Itoa(int(watchFor.Seconds())))
	ctx, cancel = context.WithTimeout(ctx, watchFor+askWithin)
	defer cancel()
	body, err := c.ask(ctx, http.MethodGet, "/api/v1/pods", query, nil)
	if err != nil {
		return err
	}
	defer body.Close()
	for events := json.NewDecoder(body); ; {
		var e struct {
			Type   string
			Object json.RawMessage
		}
		if err := events.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if e.Type == "ERROR" { // of a Status, which is no pod
			return fmt.Errorf("the API server ends the watch: %.500s", e.Object)
		}
		p := new(Pod)
		if err := json.Unmarshal(e.Object, p); err != nil {
			return err
		}
		switch e.Type {
		case "ADDED", "MODIFIED":
			t.changed(p)
		case "DELETED":
			t.gone(p)
		}
	}
}

// taint is a taint of a node, with fields that are not known here: a change keeps them.
type taint map[string]any

type clusterNode struct {
	Metadata struct{ ResourceVersion string }
	Spec     struct {
		PodCIDRs []string
		Taints   []taint
	}
	Status struct{ Addresses []struct{ Address string } }
}

func (c *Client) node(ctx context.Context, name string) (n clusterNode, err error) {
	return n, c.get(ctx, nodePath(name), nil, &n)
}

func nodePath(name string) string { return "/api/v1/nodes/" + url.PathEscape(name) }

// Taint gives a node the taint [NotReady], or takes it away.
func (c *Client) Taint(ctx context.Context, name string, on bool) error {
	node, err := c.node(ctx, name)
	if err != nil {
		return fmt.Errorf("reading node %s: %w", name, err)
	}
	is := func(t taint) bool { return t["key"] == NotReady }
	if slices.ContainsFunc(node.Spec.Taints, is) == on {
		return nil
	}
	taints := append([]taint{}, slices.DeleteFunc(node.Spec.Taints, is)...)
	if on {
		taints = append(taints, taint{"key": NotReady, "effect": "NoSchedule"})
	}
	// The list is replaced as a whole: with the version that it was read in, a change in
	// between is a conflict.
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": node.Metadata.ResourceVersion}, "spec": map[string]any{"taints": taints},
	})
	if err != nil {
		return err
	}
	body, err := c.ask(ctx, http.MethodPatch, nodePath(name), nil, patch)
	if err != nil {
		return fmt.Errorf("tainting node %s: %w", name, err)
	}
	return body.Close()
}

// Known lists the addresses of the API server that this process has been told: those of the
// kubeconfig and of the service that a pod is told of.
func (c *Client) Known() (list []netip.Prefix) {
	for _, host := range []string{c.server.Hostname(), os.Getenv("KUBERNETES_SERVICE_HOST")} {
		if a, err := netip.ParseAddr(host); err == nil {
			list = append(list, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return list
}

// Local lists what no pod may have as an upstream: the API server, by the addresses that it
// is reached at, and the node's addresses and its range of pods. With an error the list is not
// complete.
func (c *Client) Local(ctx context.Context, name string) (list []netip.Prefix, err error) {
	list = c.Known()
	add := func(text string) {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			a, _ := netip.ParseAddr(text)
			p = netip.PrefixFrom(a, a.BitLen())
		}
		if p = p.Masked(); p.IsValid() && !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	hosts, err := net.DefaultResolver.LookupHost(ctx, c.server.Hostname())
	for _, a := range hosts {
		add(a)
	}
	node, nerr := c.node(ctx, name)
	if nerr != nil {
		return list, errors.Join(err, fmt.Errorf("reading node %s: %w", name, nerr))
	}
	for _, r := range node.Spec.PodCIDRs {
		add(r)
	}
	for _, a := range node.Status.Addresses {
		add(a.Address)
	}
	return list, err
}
