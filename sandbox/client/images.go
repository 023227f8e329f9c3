package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"

	"sallyport/sandbox"
)

// ImagePull is a line of what PullImage is told: how it goes on, and at the end the image
// that is there now, or why none is.
type ImagePull struct {
	Step    *sandbox.ImageStep `json:"step,omitempty"`
	Image   *sandbox.Image     `json:"image,omitempty"`
	Problem *Problem           `json:"problem,omitempty"`
}

// Images returns the images of the daemon's engine.
func (c *Client) Images(ctx context.Context) ([]sandbox.Image, error) {
	return All[sandbox.Image](ctx, c, "/v1/images")
}

// PullImage has the daemon's engine fetch an image from its registry. When ctx is done
// it is given up. tell may be nil.
func (c *Client) PullImage(ctx context.Context, name string, tell func(sandbox.ImageStep)) (i sandbox.Image, err error) {
	resp, err := c.send(ctx, http.MethodPost, "/v1/images/pull", map[string]string{"name": name}, nil)
	if err != nil {
		return i, err
	}
	ended := false
	err = each(resp.Body, func(p ImagePull) error {
		switch {
		case p.Problem != nil:
			return p.Problem
		case p.Image != nil:
			i, ended = *p.Image, true
		case p.Step != nil && tell != nil:
			tell(*p.Step)
		}
		return nil
	})
	if err == nil && !ended {
		err = errors.Join(ctx.Err(), io.ErrUnexpectedEOF)
	}
	return i, err
}

// LoadImages has the daemon's engine read images out of a tar archive, as `docker save`
// writes it, and returns them.
func (c *Client) LoadImages(ctx context.Context, tar io.Reader) (list []sandbox.Image, err error) {
	return list, c.put(ctx, "/v1/images/archive", tar, &list)
}

// RemoveImage takes an image's name away, and the image with its last one.
func (c *Client) RemoveImage(ctx context.Context, name string) error {
	return c.Call(ctx, http.MethodDelete, "/v1/images?"+url.Values{"name": {name}}.Encode(), nil, nil)
}
