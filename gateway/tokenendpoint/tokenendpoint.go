// Package tokenendpoint answers in the place of the token endpoint of an OAuth 2.0 login that
// is kept outside of the sandbox: the sandbox's client gets the placeholder that it has for
// the login (RFC 6749, section 5).
package tokenendpoint

import (
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
)

const (
	// maxRequest is far more than a refresh request has, in bytes.
	maxRequest = 64 << 10
	// placeholderLife is how long a client takes a placeholder for valid, in seconds: a
	// year.
	placeholderLife = 365 * 24 * 3600
)

// tokenError is an error of RFC 6749, section 5.2.
type tokenError struct {
	Code        string `json:"error"`
	Description string `json:"error_description"`
}

// Answer is the status and the JSON body of the answer to a request. placeholder is the
// sandbox's for the login, "" for none.
func Answer(r *http.Request, placeholder string) (status int, body []byte) {
	status, answer := answerTo(r, placeholder)
	body, _ = json.Marshal(answer) // of texts and numbers
	return status, body
}

func answerTo(r *http.Request, placeholder string) (status int, body any) {
	params, err := parameters(r)
	switch {
	case err != nil:
		return http.StatusBadRequest, tokenError{"invalid_request", "the request is neither a form nor JSON of at most 64 KiB"}
	case params("grant_type") != "refresh_token":
		return http.StatusBadRequest, tokenError{"unsupported_grant_type", "the login is kept outside of the sandbox: an operator makes it, and nothing here can"}
	case placeholder == "":
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

// parameters reads the parameters of a request at a token endpoint.
func parameters(r *http.Request) (func(name string) string, error) {
	var body io.Reader = http.NoBody
	if r.Body != nil {
		body = r.Body
	}
	text, err := io.ReadAll(io.LimitReader(body, maxRequest+1))
	if err != nil || len(text) > maxRequest {
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
