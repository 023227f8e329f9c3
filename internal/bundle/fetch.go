// Package bundle fetches a policy bundle from a server, notices a new one, and stores the
// last good one on disk.
//
// It does not verify signatures: [rego.ReadBundle] does, also for a stored bundle. The
// size of an answer and the time for it are bounded.
package bundle

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"sallyport/internal/roots"
	"sallyport/policy"
	"sallyport/policy/rego"
)

// Bounds of one question to a server.
const (
	within    = 30 * time.Second
	maxHeader = 64 << 10 // bytes
	maxTag    = 1 << 10  // bytes of an ETag
)

// Token returns the bearer token for the server, or the empty text if it needs none.
type Token func(context.Context) (string, error)

var errRedirect = errors.New("the server sends elsewhere: write the url that it sends to")

// fetch asks a server for what is newer than tag. It returns no archive when
// there is nothing newer (RFC 9110, section 13.1.2).
func fetch(ctx context.Context, from policy.BundleSource, token Token, tag string) (archive []byte, newer string, err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	authorities, err := roots.Read(from.Roots)
	if err != nil {
		return nil, "", err
	}
	// One question in a minute is worth no connection that is kept, nor what of an
	// old configuration would stay with it. No proxy is taken from the environment.
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: authorities}, DisableKeepAlives: true, DisableCompression: true, ForceAttemptHTTP2: true,
		MaxResponseHeaderBytes: maxHeader, DialContext: (&net.Dialer{Timeout: within / 3}).DialContext,
	}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return errRedirect }}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, from.URL, nil)
	if err != nil {
		return nil, "", err
	}
	r.Header.Set("User-Agent", "sallyport")
	r.Header.Set("Accept", "application/vnd.openpolicyagent.bundles, application/gzip")
	if tag != "" {
		r.Header.Set("If-None-Match", tag)
	}
	if token != nil {
		secret, err := token(ctx)
		if err != nil {
			return nil, "", fmt.Errorf("the credential %s: %w", from.AuthRef, err)
		}
		r.Header.Set("Authorization", "Bearer "+secret)
	}
	resp, err := client.Do(r)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotModified && tag != "":
		return nil, tag, nil
	case resp.StatusCode != http.StatusOK:
		return nil, "", fmt.Errorf("the server answered %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	archive, err = io.ReadAll(io.LimitReader(resp.Body, rego.MaxBundle+1))
	switch {
	case err != nil:
		return nil, "", err
	case len(archive) > rego.MaxBundle:
		return nil, "", fmt.Errorf("the bundle has more than %d MiB", rego.MaxBundle>>20)
	}
	if newer = resp.Header.Get("Etag"); len(newer) > maxTag {
		newer = ""
	}
	return archive, newer, nil
}
