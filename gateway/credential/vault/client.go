// Package vault reads secrets that a HashiCorp Vault, or an OpenBao, keeps in a KV mount, and has
// its engines make one for each sandbox, which it revokes when the sandbox ends.
//
// Only the configuration counts: the environment's VAULT_* and proxy variables have no
// effect. Reads are bounded in time, size and number of tries. An error names its cause
// (unreachable, sealed, refused, missing path or missing field) and the remedy; none
// has a token or a value in it.
package vault

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/hashicorp/vault/api"

	"sallyport/gateway/credential"
	"sallyport/internal/config"
	"sallyport/internal/hostname"
	"sallyport/internal/roots"
	"sallyport/policy"
)

const (
	// perTry bounds one request, tries the number of them for one call.
	perTry = 4 * time.Second
	tries  = 2
	// maxResponse is more than Vault accepts for a KV secret by default (1 MiB).
	maxResponse = 4 << 20
)

// Client is the connection to one Vault server. It is safe for concurrent use.
type Client struct {
	address   string
	namespace string
	transport *http.Transport
	api       *api.Client
	auth      *session
	log       *slog.Logger
}

// New returns a Client. It reads the roots and checks the configuration, and
// does not talk to Vault: a server that is down fails the reads that need it.
func New(c config.Vault, log *slog.Logger) (*Client, error) {
	if err := checkAddress(c.Address); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if n := strings.Trim(c.Namespace, "/"); n != "" && !policy.VaultPath(n) {
		return nil, fmt.Errorf("vault.namespace: %q is not the path of a namespace", c.Namespace)
	}
	authorities, err := roots.Read(c.Roots)
	if err != nil {
		return nil, fmt.Errorf("vault.roots: %w", err)
	}
	transport := &http.Transport{
		// Proxy is nil: the environment's is not asked.
		DialContext:           (&net.Dialer{Timeout: perTry}).DialContext,
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: authorities},
		TLSHandshakeTimeout:   perTry,
		ResponseHeaderTimeout: perTry,
		ForceAttemptHTTP2:     true,
		MaxIdleConnsPerHost:   8,
		IdleConnTimeout:       90 * time.Second,
	}
	client, err := newAPI(c, transport)
	if err != nil {
		return nil, err
	}
	v := &Client{address: c.Address, namespace: strings.Trim(c.Namespace, "/"), transport: transport, api: client, log: log}
	v.auth, err = newAuth(v, c.Auth, log)
	return v, err
}

// Close closes the idle connections. Later reads open new ones.
func (v *Client) Close() { v.transport.CloseIdleConnections() }

// checkAddress refuses what would send tokens and secrets in clear.
func checkAddress(address string) error {
	u, err := hostname.ParseURL(address)
	if err != nil || u.RawQuery != "" {
		return errors.New("vault.address must be a URL such as https://vault.example.com:8200")
	}
	ip, err := netip.ParseAddr(u.Hostname())
	loopback := err == nil && ip.IsLoopback() || u.Hostname() == "localhost"
	if u.Scheme != "https" && !(u.Scheme == "http" && loopback) {
		return fmt.Errorf("vault.address %s must be https: secrets do not travel in clear (http is for loopback only)", address)
	}
	return nil
}

// newAPI returns the API client that with copies.
func newAPI(c config.Vault, transport *http.Transport) (*api.Client, error) {
	client, err := api.NewClient(&api.Config{
		Address: c.Address,
		HttpClient: &http.Client{
			Transport: limited{transport},
			// The API client follows one redirect itself, from a standby.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		Timeout:      tries * perTry,
		MaxRetries:   tries - 1,
		MinRetryWait: 100 * time.Millisecond,
		MaxRetryWait: 300 * time.Millisecond,
		Backoff:      retryablehttp.LinearJitterBackoff,
	})
	if err != nil {
		return nil, fmt.Errorf("making the Vault client (it refuses malformed VAULT_ variables in the environment: unset them): %w", err)
	}
	// NewClient takes headers, namespace and token from the environment.
	client.SetHeaders(http.Header{api.RequestHeaderName: {"true"}})
	if c.Namespace != "" {
		client.SetNamespace(c.Namespace)
	}
	return client, nil
}

// with returns an API client of its own for one call, with a token or none.
func (v *Client) with(token string) (*api.Client, error) {
	client, err := v.api.CloneWithHeaders()
	if err != nil {
		return nil, fmt.Errorf("%w: making the Vault client: %w", credential.ErrUnavailable, err)
	}
	client.SetToken(token)
	// Or VAULT_WRAP_TTL would have the answers wrapped.
	client.SetWrappingLookupFunc(func(string, string) string { return "" })
	return client.WithResponseCallbacks(notAstray), nil
}

// astray is the status of an answer that leads elsewhere once more than the API client
// follows, which the client takes for a success. No server answers with it.
const astray = -1

func notAstray(r *api.Response) {
	if r.StatusCode >= 300 && r.StatusCode < 400 {
		r.StatusCode = astray
	}
}

// limited bounds the bodies of responses.
type limited struct{ http.RoundTripper }

func (l limited) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := l.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	body := resp.Body
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(body, maxResponse), body}
	return resp, nil
}

// do runs a call with a token, and a second time with a new one where Vault
// refuses the first. needs is what the token's policy has to allow.
func (v *Client) do(ctx context.Context, what, needs string, call func(*api.Client) error) error {
	for again := true; ; again = false {
		token, err := v.auth.token(ctx)
		if err != nil {
			return err
		}
		client, err := v.with(token)
		if err != nil {
			return err
		}
		err = call(client)
		if err == nil {
			return nil
		}
		if again && status(err) == http.StatusForbidden {
			other, authErr := v.auth.renewed(ctx, token)
			if authErr != nil {
				return authErr
			}
			if other {
				continue
			}
		}
		return v.explain(what, needs, err)
	}
}

// Health returns nil if Vault answers, is unsealed and accepts the token, else an error
// with the remedy.
func (v *Client) Health(ctx context.Context) error {
	client, err := v.with("")
	if err != nil {
		return err
	}
	client.ClearNamespace() // sys/health is of the root namespace only
	h, err := client.Sys().HealthWithContext(ctx)
	switch {
	case err != nil:
		return v.explain("asking for its health", "", err)
	case !h.Initialized:
		return fmt.Errorf("%w: Vault at %s is not initialised; run: vault operator init", credential.ErrUnavailable, v.address)
	case h.Sealed:
		return v.sealed()
	}
	return v.do(ctx, "checking our token", "read on auth/token/lookup-self", func(c *api.Client) error {
		_, err := c.Auth().Token().LookupSelfWithContext(ctx)
		return err
	})
}
