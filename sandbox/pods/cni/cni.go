// Package cni is the way from the CNI plugin, sallyport-cni, to the daemon of its node:
// HTTP and JSON on a unix socket that root alone can open.
package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"syscall"
)

// SocketName is the socket's name in the daemon's runDir.
const SocketName = "cni.sock"

// The operations of the CNI specification, which are paths here. Add and Check are sent an
// [Attachment], Delete a [Detachment], Collect a [Sessions], and Status an empty object.
const (
	Add     = "/add"
	Check   = "/check"
	Delete  = "/del"
	Collect = "/gc"
	Status  = "/status"
)

// Attachment is the interface of a pod, in the words of the container runtime's CNI call
// and of the plugins before this one.
type Attachment struct {
	Session   string     `json:"session"`   // CNI_CONTAINERID, CRI's ID of the pod's sandbox
	Namespace string     `json:"namespace"` // K8S_POD_NAMESPACE of CNI_ARGS
	Pod       string     `json:"pod"`       // K8S_POD_NAME
	UID       string     `json:"uid"`       // K8S_POD_UID
	Link      string     `json:"link"`      // name of the host's end of the veth
	Address   netip.Addr `json:"address"`
	MAC       string     `json:"mac"` // of the pod's end
}

// Detachment is the end of a pod's interface.
type Detachment struct {
	Session string `json:"session"` // CNI_CONTAINERID
}

// Sessions are those that the container runtime still has.
type Sessions struct {
	Valid []string `json:"valid"`
}

// Failure is the body of an answer that is not 204.
type Failure struct {
	Error string `json:"error"`
}

// ErrAway says that no daemon listens on the socket.
var ErrAway = errors.New("the node's sallyport daemon does not run")

// maxFailure bounds an answer's body, in bytes.
const maxFailure = 64 << 10

// Call asks the daemon at a socket for one operation. Its error is the daemon's, or
// [ErrAway].
func Call(ctx context.Context, socket, operation string, in any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://daemon"+operation, bytes.NewReader(body))
	if err != nil {
		return err
	}
	t := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	resp, err := t.RoundTrip(r)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%w: nothing listens on %s", ErrAway, socket)
	}
	if err != nil {
		return fmt.Errorf("asking the node's sallyport daemon: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNoContent {
		return nil
	}
	var f Failure
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxFailure)).Decode(&f); err != nil || f.Error == "" {
		return fmt.Errorf("the node's sallyport daemon answered %s", resp.Status)
	}
	return errors.New(f.Error)
}
