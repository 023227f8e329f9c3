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
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// result of one round.
type result struct {
	Requests int
	Rate     float64       // requests a second
	P50, P99 time.Duration // of one request
	CPU      time.Duration `json:"-"` // that the proxy used
}

// measure runs one round in a process of its own.
func measure(ctx context.Context, o options, proxy *process) (result, error) {
	before, err := proxy.cpu()
	if err != nil {
		return result{}, err
	}
	raw, err := command(ctx, o, "load").Output()
	if err != nil {
		return result{}, err
	}
	after, err := proxy.cpu()
	if err != nil {
		return result{}, err
	}
	r := result{CPU: after - before}
	return r, json.Unmarshal(raw, &r)
}

// loadRole sends requests on every connection, one after the other, until the
// time is up. Any answer but the upstream's ends it.
func loadRole(ctx context.Context, o options) error {
	pem, err := os.ReadFile(o.roots)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	via, err := url.Parse(o.proxy)
	if err != nil {
		return err
	}
	took := make([][]time.Duration, o.connections)
	var group errgroup.Group
	clients := make([]*http.Client, o.connections)
	for i := range clients {
		clients[i] = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
			Proxy: http.ProxyURL(via), TLSClientConfig: &tls.Config{RootCAs: roots}, DisableCompression: true,
		}}
		// Handshakes are not what is measured.
		group.Go(func() error { return fetch(ctx, clients[i], o.target) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	start := time.Now()
	for i, c := range clients {
		group.Go(func() error {
			for last := start; last.Sub(start) < o.duration; {
				if err := fetch(ctx, c, o.target); err != nil {
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
		return err
	}
	elapsed := time.Since(start)
	all := slices.Concat(took...)
	slices.Sort(all)
	return json.NewEncoder(os.Stdout).Encode(result{
		Requests: len(all),
		Rate:     float64(len(all)) / elapsed.Seconds(),
		P50:      all[len(all)/2],
		P99:      all[len(all)*99/100],
	})
}

func fetch(ctx context.Context, c *http.Client, target string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+target+"/v1/models", nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("got %s: %s", resp.Status, why)
	}
	n, err := io.Copy(io.Discard, resp.Body)
	if err == nil && n != int64(len(document)) {
		err = fmt.Errorf("got %d bytes", n)
	}
	return err
}
