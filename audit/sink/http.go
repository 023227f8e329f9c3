package sink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Bounds of an answer.
const (
	maxReply      = 8 << 20 // bytes that are read of one
	maxText       = 200     // bytes of it that are shown
	maxRetryAfter = 10 * time.Minute
)

// poster sends to one receiver by HTTP. It follows no redirect and uses no proxy.
type poster struct {
	client *http.Client
	secret Secret
	// authorize puts the credential into a request.
	authorize func(h http.Header, fields map[string]string) error
}

func newPoster(c Config, secret Secret, dial Dial, authorize func(http.Header, map[string]string) error) (*poster, error) {
	transport, err := newTransport(c, dial)
	if err != nil {
		return nil, err
	}
	p := &poster{secret: secret, authorize: authorize}
	p.client = &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return p, nil
}

func newTransport(c Config, dial Dial) (*http.Transport, error) {
	conf, err := c.TLS.config()
	if err != nil {
		return nil, err
	}
	// HTTP/1.1: a request that has no answer in time takes its connection with it. One of
	// HTTP/2 would be used again, dead as it may be.
	return &http.Transport{
		DialContext: dial, TLSClientConfig: conf, TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConns: 2, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 64 << 10,
	}, nil
}

func (p *poster) Close() error {
	p.client.CloseIdleConnections()
	return nil
}

// post sends a body and returns the answer's. An answer that is not 2xx is an error:
// *RefusedError for 400, 413 and 422, which are about the body. 401, 403 and 404 are not:
// they end when somebody mends the receiver or the configuration.
func (p *poster) post(ctx context.Context, url string, header http.Header, body []byte) (text string, reply []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return "", nil, err
	}
	req.Header = header.Clone()
	req.Header.Set("User-Agent", "Sallyport")
	var fields map[string]string
	if p.secret != nil {
		if fields, err = p.secret(ctx); err == nil {
			err = p.authorize(req.Header, fields)
		}
		if err != nil {
			return "", nil, err
		}
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return "", nil, err
	}
	defer resp.Body.Close()
	reply, err = io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return "", nil, fmt.Errorf("%s: reading the answer: %w", resp.Status, err)
	}
	text = resp.Status
	if resp.StatusCode/100 == 2 {
		return text, reply, nil
	}
	if said := excerpt(reply, fields); said != "" {
		text += ": " + said
	}
	switch resp.StatusCode {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return "", reply, &RefusedError{text}
	}
	return "", reply, &RetryError{retryAfter(resp.Header.Get("Retry-After"), time.Now()), errors.New(text)}
}

// excerpt is the begin of an answer, unless it repeats a secret.
func excerpt(reply []byte, secrets map[string]string) string {
	text := string(reply)
	for _, s := range secrets {
		if s != "" && strings.Contains(text, s) {
			return ""
		}
	}
	text = strings.Join(strings.Fields(text), " ")
	return strings.ToValidUTF8(text[:min(len(text), maxText)], "")
}

// retryAfter reads the header of that name (RFC 9110, 10.2.3).
func retryAfter(value string, now time.Time) time.Duration {
	var d time.Duration
	if n, err := strconv.ParseUint(value, 10, 31); err == nil {
		d = time.Duration(n) * time.Second
	} else if at, err := http.ParseTime(value); err == nil {
		d = at.Sub(now)
	}
	return min(max(d, 0), maxRetryAfter)
}

// lines joins encoded records, each with a newline.
func lines(batch []Item) []byte {
	n := 0
	for _, i := range batch {
		n += len(i.Data) + 1
	}
	body := make([]byte, 0, n)
	for _, i := range batch {
		body = append(append(body, i.Data...), '\n')
	}
	return body
}

// object is encoded data as a JSON value: text in other encodings becomes a string.
func object(data []byte) []byte {
	if len(data) > 0 && data[0] == '{' {
		return data
	}
	return quoted(string(data))
}
