// Package apierror gives errors of the engine's API the words of package sandbox.
package apierror

import (
	"context"
	"errors"
	"fmt"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"sallyport/sandbox"
)

// Map wraps an error of the engine's client in the error of package sandbox that it means:
// ErrEngine, ErrNotFound, or none.
func Map(err error) error {
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, sandbox.ErrNotFound), errors.Is(err, sandbox.ErrNoImage), errors.Is(err, sandbox.ErrEngine):
		return err
	case client.IsErrConnectionFailed(err), cerrdefs.IsUnavailable(err):
		return fmt.Errorf("%w: %w: see `sallyport doctor`", sandbox.ErrEngine, err)
	case strings.Contains(err.Error(), "apparmor_parser"):
		return fmt.Errorf("%w: apt-get install apparmor", err)
	case cerrdefs.IsNotFound(err):
		return fmt.Errorf("%w: %w", sandbox.ErrNotFound, err)
	}
	return err
}
