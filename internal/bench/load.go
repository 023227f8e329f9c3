package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"sallyport/internal/test/env"
)

// result of one round.
type result struct {
	Requests int
	Rate     float64       // requests a second
	P50, P99 time.Duration // of one request
	Bytes    float64       // of bodies, a second
	Resumed  int           // TLS sessions, of as many as there were requests
	Unspoken bool          // the proxy does not speak the protocol
	Open     int           // connections left so

	CPU    time.Duration `json:",omitzero"` // that the proxy used
	Shares shares        `json:"-"`
	Took   time.Duration `json:"-"` // all of it
	Rest   env.Memory    `json:"-"` // that the proxy had before
	Grown  int64         `json:"-"` // bytes that it had resident more at the end
}

// shares are the parts of all the machine's CPU time that each had: what is left
// is the kernel's, others', or idle.
type shares struct{ load, upstream, proxy float64 }

// measure runs one round in a process of its own, whose connections are there
// until the proxy's memory has been read. Of no upstream there is no share.
func measure(ctx context.Context, o options, proxy, upstream *process) (r result, err error) {
	began := time.Now()
	if r.Rest, err = proxy.memory(); err != nil {
		return result{}, err
	}
	before, err := proxy.cpu()
	if err != nil {
		return result{}, err
	}
	var served time.Duration
	if upstream != nil {
		if served, err = upstream.cpu(); err != nil {
			return result{}, err
		}
	}
	load, err := start(ctx, o, "load")
	if err != nil {
		return result{}, err
	}
	defer load.stop(nil)
	if err := json.Unmarshal([]byte(load.ready), &r); err != nil {
		return result{}, err
	}
	now, err := proxy.memory()
	if err != nil {
		return result{}, err
	}
	r.Grown = now.Resident - r.Rest.Resident
	after, err := proxy.cpu()
	if err != nil {
		return result{}, err
	}
	r.CPU = after - before
	if upstream != nil {
		until, err := upstream.cpu()
		if err != nil {
			return result{}, err
		}
		spent, err := load.cpu()
		if err != nil {
			return result{}, err
		}
		all := time.Since(began).Seconds() * float64(runtime.NumCPU())
		r.Shares = shares{spent.Seconds() / all, (until - served).Seconds() / all, r.CPU.Seconds() / all}
	}
	return r, load.stop(nil)
}

// loadRole is one round of a kind of load. It prints what came of it, and leaves
// its connections until it is told to end.
func loadRole(ctx context.Context, o options) error {
	c, err := newClient(o)
	if err != nil {
		return err
	}
	load := (*client).keepAlive
	if k, ok := kindOf(o.kind); ok {
		load = k.load
	}
	r, err := load(c, ctx)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil || o.once {
		return err
	}
	<-ctx.Done()
	runtime.KeepAlive(c)
	return nil
}

// client is one end of the load.
type client struct {
	options
	proxies []*url.URL     // of which each connection takes one, in turn; none: it is steered
	roots   *x509.CertPool // nil: the system's
	held    []*tls.Conn    // left open
}

func newClient(o options) (*client, error) {
	c := &client{options: o}
	if o.roots != "" {
		pem, err := os.ReadFile(o.roots)
		if err != nil {
			return nil, err
		}
		c.roots = x509.NewCertPool()
		c.roots.AppendCertsFromPEM(pem)
	}
	for _, text := range strings.Fields(o.proxy) {
		via, err := url.Parse(text)
		if err != nil {
			return nil, err
		}
		c.proxies = append(c.proxies, via)
	}
	return c, nil
}

// repeat does something on every connection, one after the other, until the time
// is up. Any error ends it.
func (c *client) repeat(do func(connection int) error) (result, error) {
	took := make([][]time.Duration, c.connections)
	var group errgroup.Group
	start := time.Now()
	for i := range took {
		group.Go(func() error {
			for last := start; last.Sub(start) < c.duration; {
				if err := do(i); err != nil {
					return err
				}
				now := time.Now()
				took[i] = append(took[i], now.Sub(last))
				last = now
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return result{}, err
	}
	elapsed := time.Since(start)
	all := slices.Concat(took...)
	slices.Sort(all)
	return result{
		Requests: len(all),
		Rate:     float64(len(all)) / elapsed.Seconds(),
		P50:      all[len(all)/2],
		P99:      all[len(all)*99/100],
	}, nil
}

// keepAlive sends requests on connections that are open already: handshakes are
// not what it measures.
func (c *client) keepAlive(ctx context.Context) (result, error) {
	clients := make([]*http.Client, c.connections)
	var group errgroup.Group
	for i := range clients {
		clients[i] = &http.Client{Timeout: patience, Transport: &http.Transport{
			Proxy: c.via, TLSClientConfig: &tls.Config{RootCAs: c.roots}, DisableCompression: true,
		}}
		group.Go(func() error { return fetch(ctx, clients[i], c.target) })
	}
	if err := group.Wait(); err != nil {
		return result{}, err
	}
	return c.repeat(func(i int) error { return fetch(ctx, clients[i], c.target) })
}

// via is an http.Transport's Proxy.
func (c *client) via(*http.Request) (*url.URL, error) {
	if c.proxies == nil {
		return nil, nil
	}
	return c.proxies[0], nil
}

// fetch gets the document.
func fetch(ctx context.Context, c *http.Client, target string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+target+documentPath, nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return answered(resp, int64(len(document)))
}

// answered reads a response of n bytes; any answer but the upstream's is an error.
func answered(resp *http.Response, n int64) error {
	if resp.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("got %s: %s", resp.Status, why)
	}
	got, err := io.Copy(io.Discard, resp.Body)
	if err == nil && got != n {
		err = fmt.Errorf("got %d bytes of %d", got, n)
	}
	return err
}
