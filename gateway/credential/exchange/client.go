package exchange

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"sallyport/gateway/credential"
	"sallyport/gateway/credential/scrub"
	"sallyport/internal/roots"
)

const (
	// maxAnswer is far more than a token endpoint says.
	maxAnswer = 256 << 10
	// maxSaid bounds what an error quotes of an endpoint, in bytes.
	maxSaid = 300
	// skew is how far this host's clock may be from an endpoint's before an error
	// says so.
	skew = 30 * time.Second
)

// client asks token endpoints.
type client struct{ http *http.Client }

// dialer connects to endpoints; tests lead names elsewhere with it.
var dialer = (&net.Dialer{Timeout: within}).DialContext

// newClient returns a client that trusts the roots in a PEM file, the system's without
// one, and that sends parameters as JSON if asked to.
func newClient(rootsFile string, asJSON bool) (*client, error) {
	authorities, err := roots.Read(rootsFile)
	if err != nil {
		return nil, fmt.Errorf("roots: %w", err)
	}
	return &client{&http.Client{
		Transport: &bounded{json: asJSON, RoundTripper: &http.Transport{
			// Proxy is nil: the environment's is not asked.
			DialContext:            dialer,
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: authorities},
			TLSHandshakeTimeout:    within,
			ResponseHeaderTimeout:  within,
			MaxResponseHeaderBytes: 64 << 10,
			ForceAttemptHTTP2:      true,
			IdleConnTimeout:        30 * time.Second,
		}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       within,
	}}, nil
}

// bounded refuses what is not https and bounds the bodies of answers.
type bounded struct {
	http.RoundTripper
	json bool
}

// CloseIdleConnections is what http.Client looks for.
func (b *bounded) CloseIdleConnections() { b.RoundTripper.(*http.Transport).CloseIdleConnections() }

// RoundTrip implements http.RoundTripper.
func (b *bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" {
		return nil, errors.New("the endpoint is not https, and a secret goes over nothing else")
	}
	if b.json {
		var err error
		if r, err = withJSON(r); err != nil {
			return nil, err
		}
	}
	resp, err := b.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(resp.Body, maxAnswer), resp.Body}
	return resp, nil
}

// withJSON returns the request with its form's parameters as a JSON object.
func withJSON(r *http.Request) (*http.Request, error) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	form, err := url.ParseQuery(string(text))
	if err != nil {
		return nil, errors.New("the request's parameters are not a form")
	}
	object := make(map[string]any, len(form))
	for name, values := range form {
		if object[name] = values; len(values) == 1 {
			object[name] = values[0]
		}
	}
	if text, err = json.Marshal(object); err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }
	r.Header.Set("Content-Type", "application/json")
	return r, nil
}

// grant asks a token endpoint of OAuth 2.0. The parameters have the grant_type.
func (c *client) grant(ctx context.Context, endpoint, id, password string, style oauth2.AuthStyle, params url.Values) (*oauth2.Token, error) {
	config := clientcredentials.Config{ClientID: id, ClientSecret: password, TokenURL: endpoint, EndpointParams: params, AuthStyle: style}
	return config.Token(context.WithValue(ctx, oauth2.HTTPClient, c.http))
}

// post sends a body and decodes the answer, which is JSON.
func (c *client) post(ctx context.Context, endpoint string, header http.Header, body []byte, answer any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, bytes.NewReader(body))
	if err != nil {
		return errors.New("the endpoint is not a URL")
	}
	r.Header = header
	text, err := c.do(r, jsonRefusal)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return errNotAnswer
	}
	return nil
}

var errNotAnswer = errors.New("the endpoint answers with something that is no answer to such a request; check its URL")

// do returns the body of an answer of success. said reads another one.
func (c *client) do(r *http.Request, said func(text []byte) (code, words string)) ([]byte, error) {
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		code, words := said(text)
		return nil, newRefusal(resp, code, words)
	}
	return text, nil
}

// jsonRefusal reads the errors of RFC 6749, of Google's APIs and of GitHub's.
func jsonRefusal(text []byte) (code, words string) {
	var flat struct {
		Error       string `json:"error"`
		Description string `json:"error_description"`
		Message     string `json:"message"`
	}
	if json.Unmarshal(text, &flat) == nil {
		return flat.Error, flat.Description + flat.Message
	}
	var nested struct {
		Error struct {
			Status  string `json:"status"`
			Message string `json:"message"`
		} `json:"error"`
	}
	_ = json.Unmarshal(text, &nested) // it says nothing then
	return nested.Error.Status, nested.Error.Message
}

// refusal is what an endpoint answers in place of a token.
type refusal struct {
	status      int
	code, words string
	behind      time.Duration // how far this host's clock is behind the endpoint's
}

func newRefusal(resp *http.Response, code, words string) *refusal {
	r := &refusal{status: resp.StatusCode, code: code, words: words}
	if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		r.behind = time.Until(at)
	}
	return r
}

// Error says what the endpoint says: explain bounds and cleans it before anybody reads it.
func (r *refusal) Error() string { return strings.TrimSpace(r.code + " " + r.words) }

// explain turns an error of a trade into one of package credential that an operator can
// act on and that has nothing of the secret in it.
func explain(err error, s *secret) error {
	for _, known := range []error{credential.ErrNoSecret, credential.ErrRefused, credential.ErrUnavailable} {
		if errors.Is(err, known) {
			return err
		}
	}
	var answer *oauth2.RetrieveError
	if errors.As(err, &answer) {
		err = newRefusal(answer.Response, answer.ErrorCode, answer.ErrorDescription)
	}
	if refused, ok := errors.AsType[*refusal](err); ok {
		return refused.explain(s)
	}
	// The URL in it says nothing new, and can be long.
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err
	}
	var cert *tls.CertificateVerificationError
	var timeout net.Error
	switch {
	case errors.As(err, &cert):
		return fmt.Errorf("%w: the certificate of its token endpoint is not trusted: %w; set roots of the exchange to its authority's PEM file", credential.ErrUnavailable, cert.Err)
	case errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%w: its token endpoint did not answer within %v", credential.ErrUnavailable, within)
	}
	return fmt.Errorf("%w: exchanging it: %s", credential.ErrUnavailable, s.quote(err.Error()))
}

func (r *refusal) explain(s *secret) error {
	kind := credential.ErrRefused
	if r.status >= 500 || r.status == http.StatusTooManyRequests || r.status == http.StatusRequestTimeout {
		kind = credential.ErrUnavailable
	}
	said := "and does not say why"
	if words := r.Error(); words != "" {
		said = "and says " + s.quote(words)
	}
	if r.status >= 300 && r.status <= 399 {
		said = "which is a redirect, and redirects are not followed: correct the URL"
	}
	hint := ""
	if r.behind.Abs() > skew {
		way := "behind"
		if r.behind < 0 {
			way = "ahead of"
		}
		hint = fmt.Sprintf("; the clock of this host is %v %s the endpoint's: set it, since what is signed here names the time", r.behind.Abs().Round(time.Second), way)
	}
	return fmt.Errorf("%w: its token endpoint answers with status %d, %s%s", kind, r.status, said, hint)
}

// quote returns what somebody else says, short and in quotes, or that the secret is in it.
func (s *secret) quote(text string) string {
	var values []scrub.Value
	short := false
	add := func(value string) {
		if value = strings.TrimSpace(value); value != "" {
			values = append(values, scrub.Value{Text: value})
			short = short || strings.Contains(text, value) // a Scrubber looks for none that is short
		}
	}
	for _, f := range s.fields {
		add(f.Reveal())
	}
	for _, value := range s.shown {
		add(value)
	}
	if short || scrub.New(values).In(text) {
		return "something that is left out: it holds the secret"
	}
	if len(text) > maxSaid {
		text = text[:maxSaid] + "…"
	}
	return strconv.QuoteToASCII(strings.ToValidUTF8(text, "?"))
}
