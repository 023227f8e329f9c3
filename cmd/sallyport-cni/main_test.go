package main

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"sallyport/internal/test/must"
	"sallyport/sandbox/pods/cni"
)

// fakeDaemon answers the plugin, and remembers what it was asked.
type fakeDaemon struct {
	socket, refusal string
	asked, body     string
	got             cni.Attachment
	valid           cni.Sessions
}

func newFakeDaemon(t *testing.T) *fakeDaemon {
	t.Helper()
	d := &fakeDaemon{socket: filepath.Join(t.TempDir(), cni.SocketName)}
	l, err := net.Listen("unix", d.socket)
	must.OK(t, err)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.asked = r.URL.Path
		body, _ := io.ReadAll(r.Body)
		d.body = string(body)
		if r.URL.Path == cni.Collect {
			_ = json.Unmarshal(body, &d.valid)
		} else {
			_ = json.Unmarshal(body, &d.got)
		}
		if d.refusal == "" {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(w).Encode(cni.Failure{Error: d.refusal})
	})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return d
}

// call is a call of containerd's, with the result of bridge and host-local.
func (d *fakeDaemon) call(change ...string) *skel.CmdArgs {
	conf := `{"cniVersion":"1.1.0","name":"sallyport","type":"sallyport-cni","socket":"` + d.socket + `",
		"prevResult":{"cniVersion":"1.1.0",
			"interfaces":[{"name":"sallyport0","mac":"02:5a:00:00:00:01"},{"name":"veth1","mac":"02:00:00:00:00:01"},{"name":"eth0","mac":"02:00:00:00:00:02","sandbox":"/run/netns/x"}],
			"ips":[{"interface":2,"address":"10.231.0.9/16","gateway":"10.231.0.1"}]},
		"cni.dev/valid-attachments":[{"containerID":"s1","ifname":"eth0"},{"containerID":"s2","ifname":"eth0"}]}`
	return &skel.CmdArgs{
		ContainerID: "s1", Netns: "/run/netns/x", IfName: "eth0", StdinData: []byte(strings.NewReplacer(change...).Replace(conf)),
		Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=a;K8S_POD_INFRA_CONTAINER_ID=s1;K8S_POD_UID=u1;OTHER=x",
	}
}

// silence keeps the result, which is for containerd, off the test's output.
func silence(t *testing.T) {
	t.Helper()
	out := os.Stdout
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	must.OK(t, err)
	os.Stdout = null
	t.Cleanup(func() { os.Stdout = out; _ = null.Close() })
}

// The daemon is asked with the pod that the runtime names and the interface that the
// plugins before have made, and its refusal is the plugin's.
func TestAdd(t *testing.T) {
	silence(t)
	d := newFakeDaemon(t)
	must.OK(t, add(d.call()))
	if g := d.got; d.asked != cni.Add || g.Session != "s1" || g.Namespace != "ns" || g.Pod != "a" || g.UID != "u1" || g.Link != "veth1" || g.Address.String() != "10.231.0.9" || g.MAC != "02:00:00:00:00:02" {
		t.Errorf("asked %s with %+v", d.asked, g)
	}
	must.OK(t, check(d.call()))
	d.refusal = "it is not of RuntimeClass \"sallyport\""
	if err := add(d.call()); err == nil || err.Error() != d.refusal {
		t.Errorf("got %v, want the daemon's refusal", err)
	}
	d.refusal, d.asked = "", ""
	for what, c := range map[string]*skel.CmdArgs{
		"no result":       d.call("prevResult", "other"),
		"no address":      d.call(`"interface":2,`, ""),
		"another address": d.call(`"ips":[`, `"ips":[{"interface":2,"address":"10.231.0.8/16"},`),
		"another's":       d.call("/run/netns/x", "/run/netns/y"),
		"no veth":         d.call(`{"name":"veth1","mac":"02:00:00:00:00:01"},`, "", `"interface":2`, `"interface":1`),
	} {
		if err := add(c); err == nil || d.asked != "" {
			t.Errorf("%s: got %v, and the daemon was asked %q", what, err, d.asked)
		}
	}
}

// Without a daemon ADD and STATUS fail, and DEL and GC have nothing to do. A daemon that
// does not do what it should is asked again.
func TestAway(t *testing.T) {
	silence(t)
	d := newFakeDaemon(t)
	must.OK(t, del(d.call()))
	if d.asked != cni.Delete || d.body != `{"session":"s1"}` {
		t.Errorf("asked %s with %s", d.asked, d.body)
	}
	must.OK(t, collect(d.call()))
	if d.asked != cni.Collect || strings.Join(d.valid.Valid, " ") != "s1 s2" {
		t.Errorf("asked %s with %v", d.asked, d.valid)
	}
	must.OK(t, status(d.call()))
	d.refusal = "the audit log is full"
	if del(d.call()) == nil || collect(d.call()) == nil {
		t.Error("the end of a session that could not be ended succeeds")
	}
	d.socket += "x"
	for what, call := range map[string]func(*skel.CmdArgs) error{"DEL": del, "GC": collect} {
		if err := call(d.call()); err != nil {
			t.Errorf("%s without a daemon: %v", what, err)
		}
	}
	if err := add(d.call()); !errors.Is(err, cni.ErrAway) {
		t.Errorf("ADD without a daemon: %v", err)
	}
	var e *types.Error
	if err := status(d.call()); !errors.As(err, &e) || e.Code != 50 {
		t.Errorf("STATUS without a daemon: %v, want code 50", err)
	}
}

// The chain gives the pods of a node their part of the subnet, and neither the gateway's
// address nor the one after it.
func TestInstall(t *testing.T) {
	for part, want := range map[string]string{
		"":               "10.231.0.3 ",
		"10.231.16.0/20": "10.231.16.1 10.231.31.254",
		"10.231.0.0/24":  "10.231.0.3 10.231.0.254",
	} {
		dir := t.TempDir()
		must.OK(t, install([]string{"-bin", filepath.Join(dir, "bin"), "-conf", filepath.Join(dir, "conf"), "-range", part}))
		text, err := os.ReadFile(filepath.Join(dir, "conf", conflist))
		must.OK(t, err)
		var list struct {
			Plugins []struct {
				Type string
				IPAM struct{ Ranges [][]map[string]string }
			}
		}
		must.OK(t, json.Unmarshal(text, &list))
		p := list.Plugins
		if len(p) != 2 || p[0].Type != "bridge" || p[1].Type != program {
			t.Fatalf("the chain is %s", text)
		}
		if r := p[0].IPAM.Ranges[0][0]; r["rangeStart"]+" "+r["rangeEnd"] != want || r["gateway"] != "10.231.0.1" {
			t.Errorf("range %q is %v, want %q", part, r, want)
		}
		if i, err := os.Stat(filepath.Join(dir, "bin", program)); err != nil || i.Mode().Perm() != 0o755 {
			t.Errorf("the program: %v, %v", i, err)
		}
	}
	for _, part := range []string{"10.232.0.0/20", "10.231.0.0/8", "10.231.0.1/20", "10.231.0.0/30", "x"} {
		if _, err := chain("sallyport0", "10.231.0.0/16", part, "s"); err == nil {
			t.Errorf("the range %s is taken", part)
		}
	}
}
