package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
)

// Change is one file's, as a line of JSON.
type Change struct {
	Kind string `json:"kind"` // added, modified or removed
	Path string `json:"path"`
	Raw  []byte `json:"raw,omitempty"` // Path where that is not UTF-8
}

// Changes tells what has changed of a sandbox's files since a snapshot or, for
// "", of its image.
func (c *Client) Changes(ctx context.Context, name, snapshot string, tell func(Change) error) error {
	path := sandboxPath(name, "changes")
	if snapshot != "" {
		path += "?since=" + url.QueryEscape(snapshot)
	}
	resp, err := c.fetch(ctx, path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for lines := json.NewDecoder(resp.Body); ; {
		var x Change
		if err := lines.Decode(&x); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := tell(x); err != nil {
			return err
		}
	}
}

// fetch asks for what is read as it comes; the caller closes it.
func (c *Client) fetch(ctx context.Context, path string) (*http.Response, error) {
	req, err := c.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	return c.do(req)
}
