// Command sallyport-cni is the last plugin of the chain that containerd calls for pods of
// Sallyport's RuntimeClass. It has the node's daemon vouch for the pod's interface, which
// the plugins before it have made, and fails if the daemon does not: then the pod is not
// started, and kubelet tries again.
//
// Kubernetes' names of the pod come in CNI_ARGS, and the interface in prevResult. The
// network's configuration says where the daemon is: "socket", by default
// /run/sallyport/cni.sock.
//
// DEL succeeds when no daemon listens: the interface goes with the other plugins' DEL, and
// the daemon finds out when it starts, or else when a pod of its node is gone. STATUS fails
// then, as the CNI specification has it for a plugin that cannot serve ADD.
//
// `sallyport-cni install` puts the plugin and the chain where containerd finds them: see
// its -help.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"sallyport/sandbox/pods/cni"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "install" {
		if err := install(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "sallyport-cni install:", err)
			os.Exit(1)
		}
		return
	}
	skel.PluginMainFuncs(skel.CNIFuncs{
		Add: add, Del: del, Check: check, GC: collect, Status: status,
	}, version.PluginSupports("1.0.0", "1.1.0"), "sallyport-cni: has Sallyport vouch for a pod's interface")
}

// network is the plugin's part of the conflist.
type network struct {
	types.PluginConf
	Socket string `json:"socket"`
}

// podArgs are Kubernetes' in CNI_ARGS.
type podArgs struct {
	types.CommonArgs
	K8S_POD_NAMESPACE, K8S_POD_NAME, K8S_POD_UID types.UnmarshallableString
}

// callWithin bounds a call: the API server's answer and two data syncs are in it.
const callWithin = 30 * time.Second

func call(n network, operation string, in any) error {
	ctx, cancel := context.WithTimeout(context.Background(), callWithin)
	defer cancel()
	return cni.Call(ctx, n.Socket, operation, in)
}

// defaultSocket is where the daemon listens with runDir's default.
const defaultSocket = "/run/sallyport/" + cni.SocketName

func read(stdin []byte) (network, error) {
	n := network{Socket: defaultSocket}
	if err := json.Unmarshal(stdin, &n); err != nil {
		return n, fmt.Errorf("reading the network's configuration: %w", err)
	}
	return n, nil
}

// attachment is what CNI says of a pod's interface.
func attachment(args *skel.CmdArgs) (n network, r *current.Result, a cni.Attachment, err error) {
	if n, err = read(args.StdinData); err != nil {
		return n, nil, a, err
	}
	if err := version.ParsePrevResult(&n.PluginConf); err != nil {
		return n, nil, a, err
	}
	pod := podArgs{CommonArgs: types.CommonArgs{IgnoreUnknown: true}}
	if err := types.LoadArgs(args.Args, &pod); err != nil {
		return n, nil, a, fmt.Errorf("reading CNI_ARGS: %w", err)
	}
	if n.PrevResult == nil {
		return n, nil, a, errors.New("no plugin has made an interface before this one: sallyport-cni is the last of a chain")
	}
	if r, err = current.NewResultFromResult(n.PrevResult); err != nil {
		return n, nil, a, err
	}
	a = cni.Attachment{
		Session: args.ContainerID, Namespace: string(pod.K8S_POD_NAMESPACE), Pod: string(pod.K8S_POD_NAME), UID: string(pod.K8S_POD_UID),
	}
	inner, bridge := -1, ""
	for i, l := range r.Interfaces {
		switch {
		case l.Sandbox == args.Netns && l.Name == args.IfName:
			inner, a.MAC = i, l.Mac
		case l.Sandbox == "" && bridge == "": // the bridge plugin names the bridge first
			bridge = l.Name
		case l.Sandbox == "":
			a.Link = l.Name
		}
	}
	for _, ip := range r.IPs {
		if ip.Interface != nil && *ip.Interface == inner && ip.Address.IP.To4() != nil {
			if a.Address.IsValid() {
				return n, nil, a, errors.New("the pod's interface has more than one IPv4 address")
			}
			a.Address, _ = netip.AddrFromSlice(ip.Address.IP.To4())
		}
	}
	if inner < 0 || a.Link == "" || !a.Address.IsValid() {
		return n, nil, a, fmt.Errorf("the plugins before this one made no interface %s with an IPv4 address on a bridge", args.IfName)
	}
	return n, r, a, nil
}

func add(args *skel.CmdArgs) error {
	n, r, a, err := attachment(args)
	if err != nil {
		return err
	}
	if err := call(n, cni.Add, a); err != nil {
		return err
	}
	return types.PrintResult(r, n.CNIVersion)
}

func check(args *skel.CmdArgs) error {
	n, _, a, err := attachment(args)
	if err != nil {
		return err
	}
	return call(n, cni.Check, a)
}

func del(args *skel.CmdArgs) error {
	n, err := read(args.StdinData)
	if err != nil {
		return err
	}
	return notAway(call(n, cni.Delete, cni.Detachment{Session: args.ContainerID}))
}

func collect(args *skel.CmdArgs) error {
	n, err := read(args.StdinData)
	if err != nil {
		return err
	}
	sessions := cni.Sessions{}
	for _, a := range n.ValidAttachments {
		sessions.Valid = append(sessions.Valid, a.ContainerID)
	}
	return notAway(call(n, cni.Collect, sessions))
}

func status(args *skel.CmdArgs) error {
	n, err := read(args.StdinData)
	if err != nil {
		return err
	}
	if err := call(n, cni.Status, struct{}{}); err != nil {
		const notAvailable = 50 // of the CNI specification, section 2, STATUS
		return types.NewError(notAvailable, err.Error(), "")
	}
	return nil
}

// notAway is an error but for one that no daemon listens.
func notAway(err error) error {
	if errors.Is(err, cni.ErrAway) {
		return nil
	}
	return err
}
