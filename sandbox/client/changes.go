package client

import (
	"context"
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
	return Lines(ctx, c, path, tell)
}
