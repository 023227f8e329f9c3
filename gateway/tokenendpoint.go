package gateway

import (
	"bytes"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"sallyport/gateway/answer"
	"sallyport/policy"
)

const (
	// maxTokenRequest is far more than a refresh request has, in bytes.
	maxTokenRequest = 64 << 10
	// placeholderLife is how long a client takes a placeholder for valid, in seconds: a
	// year.
	placeholderLife = 365 * 24 * 3600
)

// answerToken answers a request at a token endpoint whose login the broker keeps. The
// sandbox's client gets the placeholder that it has for the login, and nothing of its request
// leaves. It returns nil where the decision names no such endpoint.
func (q *request) answerToken(r *http.Request) *http.Response {
	d := q.grant.decision
	i := slices.IndexFunc(d.Inject, func(i policy.Injection) bool { return i.Inject.TokenEndpoint })
	if i < 0 {
		return nil
	}
	name := d.Inject[i].Credential
	q.said = "the gateway answered in the place of the token endpoint of " + name + ", and nothing was sent"
	status, body := q.tokenAnswer(r, name)
	text, _ := json.Marshal(body) // of texts and numbers
	resp := &http.Response{
		StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{
			"Content-Type": {"application/json"}, "Content-Length": {strconv.Itoa(len(text))}, "Cache-Control": {"no-store"},
			answer.DecisionHeader: {q.allowed.ID()},
		},
		Body: io.NopCloser(bytes.NewReader(text)), ContentLength: int64(len(text)),
	}
	q.out.length = resp.ContentLength
	return resp
}

// tokenError is an error of RFC 6749, section 5.2.
type tokenError struct {
	Code        string `json:"error"`
	Description string `json:"error_description"`
}

// tokenAnswer is what a token endpoint would answer (RFC 6749, section 5).
func (q *request) tokenAnswer(r *http.Request, credential string) (status int, body any) {
	params, err := tokenParams(r)
	if err != nil {
		return http.StatusBadRequest, tokenError{"invalid_request", "the request is neither a form nor JSON of at most 64 KiB"}
	}
	if params("grant_type") != "refresh_token" {
		return http.StatusBadRequest, tokenError{"unsupported_grant_type", "the login is kept outside of the sandbox: an operator makes it, and nothing here can"}
	}
	placeholder := ""
	if q.gateway.placeholders != nil {
		placeholder = q.gateway.placeholders(q.identity.ID).Text(credential)
	}
	if placeholder == "" {
		return http.StatusBadRequest, tokenError{"invalid_grant", "the sandbox was given no placeholder of this login"}
	}
	type token struct {
		Access  string `json:"access_token"`
		Refresh string `json:"refresh_token"`
		Type    string `json:"token_type"`
		Life    int    `json:"expires_in"`
		Scope   string `json:"scope,omitempty"`
	}
	return http.StatusOK, token{placeholder, placeholder, "Bearer", placeholderLife, params("scope")}
}

// tokenParams reads the parameters of a request at a token endpoint.
func tokenParams(r *http.Request) (func(name string) string, error) {
	var body io.Reader = http.NoBody
	if r.Body != nil {
		body = r.Body
	}
	text, err := io.ReadAll(io.LimitReader(body, maxTokenRequest+1))
	if err != nil || len(text) > maxTokenRequest {
		return nil, io.ErrUnexpectedEOF
	}
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if strings.HasSuffix(kind, "json") {
		var object map[string]any
		if err := json.Unmarshal(text, &object); err != nil {
			return nil, err
		}
		return func(name string) string {
			value, _ := object[name].(string)
			return value
		}, nil
	}
	form, err := url.ParseQuery(string(text))
	return form.Get, err
}
