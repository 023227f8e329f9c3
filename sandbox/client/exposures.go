package client

import (
	"context"
	"net/http"
	"strconv"
	"time"
)

// Exposure is a port of a sandbox that requests from the daemon's host may reach.
type Exposure struct {
	Sandbox string    `json:"sandbox"`
	Port    uint16    `json:"port"`
	URL     string    `json:"url"` // with a host name of its own
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
}

// Exposed is the only time that an exposure's token is shown.
type Exposed struct {
	Exposure
	Token string `json:"token"`
	Visit string `json:"visit"` // URL with the token, for a browser
}

func exposurePath(name string, port uint16) string {
	return sandboxPath(name, "exposures/"+strconv.Itoa(int(port)))
}

// Expose lets whoever has the token reach a port of a sandbox from the daemon's
// host, for a time, where the policy allows it. A token of before is void.
func (c *Client) Expose(ctx context.Context, name string, port uint16, lasts time.Duration) (e Exposed, err error) {
	in := map[string]int64{"seconds": int64(lasts / time.Second)}
	return e, c.Call(ctx, http.MethodPut, exposurePath(name, port), in, &e)
}

// Unexpose ends an exposure and what goes on by it.
func (c *Client) Unexpose(ctx context.Context, name string, port uint16) error {
	return c.Call(ctx, http.MethodDelete, exposurePath(name, port), nil, nil)
}

// Exposures lists the exposed ports of a sandbox.
func (c *Client) Exposures(ctx context.Context, name string) ([]Exposure, error) {
	return All[Exposure](ctx, c, sandboxPath(name, "exposures"))
}
