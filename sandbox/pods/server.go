package pods

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"sallyport/sandbox/pods/cni"
)

// maxCall bounds the body of a call, in bytes: the sessions of a node are the most that
// there is to say.
const maxCall = 4 << 20

// errMalformed says that a call does not say all that it has to. It is no state of the node.
var errMalformed = errors.New("the call is malformed")

// Listen makes the socket of the CNI plugin, which is root's alone from its first moment: bind
// gives the file the mode that the socket has (unix_bind_bsd in net/unix/af_unix.c of Linux).
func Listen(ctx context.Context, path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	private := func(_, _ string, c syscall.RawConn) (err error) {
		cerr := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, cerr)
	}
	return (&net.ListenConfig{Control: private}).Listen(ctx, "unix", path)
}

// Handler answers the CNI plugin's calls: 400 those that are malformed, and 409 those that
// the node's state is against. It asks for no key: only root may reach it.
func (p *Pods) Handler() http.Handler {
	mux := http.NewServeMux()
	handle(mux, cni.Add, p.Attach)
	handle(mux, cni.Check, func(_ context.Context, a cni.Attachment) error { return p.Check(a) })
	handle(mux, cni.Delete, func(ctx context.Context, d cni.Detachment) error { return p.Detach(ctx, d.Session) })
	handle(mux, cni.Collect, func(ctx context.Context, s cni.Sessions) error { return p.Collect(ctx, s.Valid) })
	handle(mux, cni.Status, func(context.Context, struct{}) error { return nil })
	return mux
}

func handle[In any](mux *http.ServeMux, operation string, do func(context.Context, In) error) {
	mux.HandleFunc("POST "+operation, func(w http.ResponseWriter, r *http.Request) {
		var in In
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxCall)).Decode(&in)
		if err == nil {
			err = do(r.Context(), in)
		} else {
			err = fmt.Errorf("%w: it is not as cni.Call makes it: %w", errMalformed, err)
		}
		if err == nil {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		status := http.StatusConflict
		if errors.Is(err, errMalformed) {
			status = http.StatusBadRequest
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(cni.Failure{Error: err.Error()})
	})
}
