// Package kubeapi is a client of an API server for tests: plain HTTP and JSON, as another user
// where that is asked for.
package kubeapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/goccy/go-yaml"
)

// Object is one of the API's, as JSON has it.
type Object = map[string]any

// Client sends requests to one API server.
type Client struct {
	server string
	http   *http.Client
	token  string
}

// Open reads a kubeconfig whose first cluster and user name files of certificates.
func Open(kubeconfig string) (*Client, error) {
	text, err := os.ReadFile(kubeconfig)
	if err != nil {
		return nil, err
	}
	var config struct {
		Clusters []struct {
			Cluster struct {
				Server    string `yaml:"server"`
				Authority string `yaml:"certificate-authority"`
			} `yaml:"cluster"`
		} `yaml:"clusters"`
		Users []struct {
			User struct {
				Certificate string `yaml:"client-certificate"`
				Key         string `yaml:"client-key"`
			} `yaml:"user"`
		} `yaml:"users"`
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		return nil, err
	}
	if len(config.Clusters) == 0 || len(config.Users) == 0 {
		return nil, fmt.Errorf("%s: it needs a cluster and a user", kubeconfig)
	}
	cluster, user := config.Clusters[0].Cluster, config.Users[0].User
	pair, err := tls.LoadX509KeyPair(user.Certificate, user.Key)
	if err != nil {
		return nil, err
	}
	authority, err := os.ReadFile(cluster.Authority)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	return &Client{server: cluster.Server, http: &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}, ForceAttemptHTTP2: true,
	}}}, nil
}

// WithToken returns a client that has a token in place of a certificate.
func (c *Client) WithToken(token string) *Client {
	transport := c.http.Transport.(*http.Transport).Clone()
	transport.TLSClientConfig.Certificates = nil
	return &Client{server: c.server, http: &http.Client{Transport: transport}, token: token}
}

// Close ends the client's idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Error is an answer that is not a success.
type Error struct {
	Code    int
	Reason  string
	Message string
}

func (e *Error) Error() string { return fmt.Sprintf("%d %s: %s", e.Code, e.Reason, e.Message) }

// Types of patches.
const (
	MergePatch = "application/merge-patch+json"
	JSONPatch  = "application/json-patch+json"
	ApplyPatch = "application/apply-patch+yaml"
)

// Do sends a body as JSON, or as it is where it is a string of YAML, and returns the object
// that is answered. An answer that is not a success is an *Error.
func (c *Client) Do(ctx context.Context, method, path, kind string, body any) (Object, error) {
	var text []byte
	switch b := body.(type) {
	case nil:
	case string:
		text = []byte(b)
	default:
		var err error
		if text, err = json.Marshal(b); err != nil {
			return nil, err
		}
	}
	r, err := http.NewRequestWithContext(ctx, method, c.server+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	if kind != "" {
		r.Header.Set("Content-Type", kind)
	}
	r.Header.Set("Accept", "application/json")
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err = io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode >= 300 {
		e := &Error{Code: answer.StatusCode, Message: string(text)}
		var status struct{ Reason, Message string }
		if json.Unmarshal(text, &status) == nil && status.Message != "" {
			e.Reason, e.Message = status.Reason, status.Message
		}
		return nil, e
	}
	var o Object
	return o, json.Unmarshal(text, &o)
}

// Get reads an object or a list.
func (c *Client) Get(ctx context.Context, path string) (Object, error) {
	return c.Do(ctx, http.MethodGet, path, "", nil)
}

// Create makes an object in the collection of this path.
func (c *Client) Create(ctx context.Context, path string, object any) (Object, error) {
	kind := "application/json"
	if _, ok := object.(string); ok {
		kind = "application/yaml"
	}
	return c.Do(ctx, http.MethodPost, path, kind, object)
}

// Patch changes an object.
func (c *Client) Patch(ctx context.Context, path, kind string, patch any) (Object, error) {
	return c.Do(ctx, http.MethodPatch, path, kind, patch)
}

// Replace replaces an object.
func (c *Client) Replace(ctx context.Context, path string, object any) (Object, error) {
	return c.Do(ctx, http.MethodPut, path, "application/json", object)
}

// Delete removes an object.
func (c *Client) Delete(ctx context.Context, path string) error {
	_, err := c.Do(ctx, http.MethodDelete, path, "", nil)
	return err
}

// At returns what an object has at a path of keys, or nil.
func At(o any, keys ...string) any {
	for _, key := range keys {
		m, _ := o.(Object)
		o = m[key]
	}
	return o
}
