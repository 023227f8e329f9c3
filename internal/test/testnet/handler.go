package testnet

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"os/exec"
	"strings"
)

// Key is the SHA-256 of a key that a server expects. The server knows no more
// of it and never says more than its first six bytes.
type Key [sha256.Size]byte

// KeyOf hashes a key.
func KeyOf(key string) Key { return sha256.Sum256([]byte(key)) }

// ParseKey reads 64 hexadecimal digits.
func ParseKey(s string) (Key, error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != sha256.Size {
		return Key{}, fmt.Errorf("%q is not a SHA-256: want 64 hexadecimal digits", s)
	}
	return Key(b), nil
}

// APIAnswer is what API says of a request.
type APIAnswer struct {
	SawKey    bool   `json:"saw_key"`
	KeySHA256 string `json:"key_sha256"` // first 12 digits for the key that was sent, "" when none was
	Method    string `json:"method"`
	Path      string `json:"path"`
	Protocol  string `json:"protocol"`
	BodyBytes int64  `json:"body_bytes"`
}

// API answers every request with an APIAnswer. It finds a key in
// Authorization (Bearer, token, or the password of Basic), X-Api-Key, and the
// query's key, api_key and access_token.
func API(want Key) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := APIAnswer{Method: r.Method, Path: r.URL.Path, Protocol: r.Proto}
		a.BodyBytes, _ = io.Copy(io.Discard, r.Body)
		for _, k := range keys(r) {
			sum := KeyOf(k)
			if a.KeySHA256 == "" || sum == want {
				a.KeySHA256 = hex.EncodeToString(sum[:6])
			}
			a.SawKey = a.SawKey || sum == want
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(a)
	})
}

// RequireKey lets requests with the key through and answers the others 401.
func RequireKey(want Key, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, k := range keys(r) {
			if KeyOf(k) == want {
				next.ServeHTTP(w, r)
				return
			}
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test host"`)
		http.Error(w, "the key is missing or wrong", http.StatusUnauthorized)
	})
}

func keys(r *http.Request) []string {
	var found []string
	for _, v := range r.Header.Values("Authorization") {
		if _, password, ok := (&http.Request{Header: http.Header{"Authorization": {v}}}).BasicAuth(); ok {
			found = append(found, password)
		} else if _, rest, ok := strings.Cut(v, " "); ok {
			found = append(found, strings.TrimSpace(rest))
		} else {
			found = append(found, v)
		}
	}
	found = append(found, r.Header.Values("X-Api-Key")...)
	query := r.URL.Query()
	for _, name := range []string{"key", "api_key", "access_token"} {
		found = append(found, query[name]...)
	}
	return found
}

// Git serves the bare repositories below root over smart HTTP, for reading and
// pushing (git-http-backend(1)).
func Git(root string) (http.Handler, error) {
	out, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		return nil, fmt.Errorf("looking for git-http-backend: %w", err)
	}
	backend := &cgi.Handler{
		Path: strings.TrimSpace(string(out)) + "/git-http-backend",
		Env: []string{
			"GIT_PROJECT_ROOT=" + root,
			"GIT_HTTP_EXPORT_ALL=1",
			"REMOTE_USER=test",
			// The repositories' owner may be another user than this one.
			"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
		},
		Stderr: io.Discard,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// CGI (RFC 3875) has no chunked bodies; HTTP/1.1 and proxies do.
		if r.ContentLength < 0 {
			body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxPush))
			if err != nil {
				http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			r.ContentLength, r.TransferEncoding = int64(len(body)), nil
		}
		backend.ServeHTTP(w, r)
	}), nil
}

const maxPush = 256 << 20 // bytes of a chunked request
