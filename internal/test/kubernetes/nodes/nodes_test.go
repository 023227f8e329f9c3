//go:build kubernetes

package nodes

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"sallyport/internal/test/kubernetes"
	"sallyport/internal/test/must"
	"sallyport/internal/test/vaultcore"
)

func TestNodes(t *testing.T) {
	r := newRig(t)
	n1 := r.node("n1")
	// A packet of the node itself to nobody is seen: the sniffer hears.
	control := r.Sniff(t, r.strange)
	n1.must("bash", "-c", "echo x >/dev/udp/"+nobody+"/9")
	must.Soon(t, "the node's own packet", func() bool { return len(control.Seen()) == 1 })
	r.seen = r.Sniff(t, r.strange)
	r.pod("box", sleeps)
	r.ready("box")
	for _, part := range []struct {
		name string
		test func(*rig, *node)
	}{
		{"Request", testRequest}, {"Router", testRouter}, {"Probes", testProbes}, {"DaemonKilled", testDaemonKilled}, {"APIServerDown", testAPIServerDown},
		{"PluginMissing", testPluginMissing}, {"HostNetwork", testHostNetwork}, {"VaultDown", testVaultDown}, {"PowerCut", testPowerCut}, {"NodeLost", testNodeLost},
	} {
		ok := t.Run(part.name, func(t *testing.T) {
			inner, node := *r, *n1
			inner.t, node.r = t, &inner
			part.test(&inner, &node)
			inner.silent("at the end")
		})
		if !ok {
			break // a later part would have an earlier one's faults
		}
	}
}

// A credential is injected, and refusals are recorded with who it was.
func testRequest(r *rig, n *node) {
	r.served("box")
	out, _ := r.inside("box", ask)
	if strings.Contains(out, r.key) {
		r.t.Errorf("the pod got the secret: %s", out)
	}
	n.recorded(`"agents/box"`, "api.example.test", `"test"`, `"n1"`)
	for what, command := range map[string]string{
		"a host of no rule": "curl -sS --max-time 5 -f https://evil.example.test/",
		"a bare address":    "curl -sS --max-time 5 -f http://203.0.113.9/",
		"the API server":    "curl -sSk --max-time 5 -f https://192.0.2.1:6443/version",
		"a service":         "curl -sSk --max-time 5 -f https://10.96.0.1/version",
		"the kubelet":       "curl -sSk --max-time 5 -f https://" + n.Addr().String() + ":10250/pods",
	} {
		if out, err := r.inside("box", command); err == nil {
			r.t.Errorf("%s: reached: %s", what, out)
		}
	}
	for _, destination := range []string{"evil.example.test", "203.0.113.9", "192.0.2.1", "10.96.0.1", n.Addr().String()} {
		n.recorded(`"agents/box"`, destination, `"decision":"deny"`)
	}
}

// Pods that flood from their first instruction are not heard while no daemon is there, and
// begin when it is.
func testDaemonKilled(r *rig, n *node) {
	r.pod("early", floods)
	r.ready("early")
	must.OK(r.t, n.KillDaemon(daemon))
	if out, err := r.inside("box", ask); err == nil {
		r.t.Errorf("a request without a daemon: %s", out)
	}
	r.pod("late", floods)
	r.refused("late")
	r.silent("without a daemon")
	n.startDaemon()
	r.served("box")
	r.ready("late")
	r.silent("with the next daemon")
	n.recorded(`"agents/late"`, "203.0.113.9")
	r.remove("early", "late")
}

// Without the API server what runs goes on, over a restart of the daemon too.
func testAPIServerDown(r *rig, n *node) {
	// kubectl exec needs the API server, so that the pod asks by itself.
	r.pod("asks", "while :; do "+strings.ReplaceAll(ask, `"`, `\"`)+" && echo; sleep 0.2; done")
	r.ready("asks")
	must.Soon(r.t, "the pod's first answer", func() bool { return n.answers("asks") > 0 })
	must.OK(r.t, r.StopAPIServer())
	before := n.answers("asks")
	must.Soon(r.t, "an answer without the API server", func() bool { return n.answers("asks") > before })
	must.OK(r.t, n.KillDaemon(daemon))
	n.startDaemon()
	before = n.answers("asks")
	must.Soon(r.t, "an answer of a daemon that has started without the API server", func() bool { return n.answers("asks") > before })
	must.OK(r.t, r.StartAPIServer())
	r.served("box")
	r.remove("asks")
}

// answers counts what a pod has got, by its log on the node.
func (n *node) answers(pod string) int {
	out, _ := n.Exec(n.r.ctx, "sh", "-c", "cat /var/log/pods/agents_"+pod+"_*/main/*.log")
	return strings.Count(out, `"saw_key":true`)
}

// A pod of a chain without the plugin runs, and reaches nothing.
func testPluginMissing(r *rig, n *node) {
	conflist := "/etc/cni/sallyport.d/10-sallyport.conflist"
	whole := n.must("cat", conflist)
	begin, _, found := strings.Cut(whole, "    {\n      \"socket\"")
	if !found {
		r.t.Fatalf("the chain is %s", whole)
	}
	must.OK(r.t, n.Write(conflist, strings.TrimRight(begin, " \n,")+"\n  ]\n}\n"))
	defer func() { must.OK(r.t, n.Write(conflist, whole)) }()
	r.pod("bare", floods)
	r.ready("bare")
	for what, command := range map[string]string{
		"a name": ask, "an address": "curl -sS --max-time 5 http://203.0.113.9/",
		"the gateway": "exec 3<>/dev/tcp/10.231.0.1/53", "the node": "exec 3<>/dev/tcp/" + n.Addr().String() + "/10250",
	} {
		if out, err := r.inside("bare", "timeout 5 bash -c '"+strings.ReplaceAll(command, "'", `"`)+"'"); err == nil {
			r.t.Errorf("%s: reached by a pod that nobody vouches for: %s", what, out)
		}
	}
	n.recorded("unattached")
	r.served("box")
	r.remove("bare")
}

// A pod with hostNetwork is refused; were it let in, gVisor would have no network.
func testHostNetwork(r *rig, n *node) {
	pod := podOf("host", floods, "hostNetwork: true")
	if err := r.Apply(r.ctx, pod); err == nil {
		r.t.Fatal("admission let a pod with hostNetwork in")
	}
	bindings := r.kubectl("get", "validatingadmissionpolicybinding", "sallyport", "-o", "yaml")
	r.kubectl("delete", "validatingadmissionpolicybinding", "sallyport")
	must.Soon(r.t, "admission to let it in", func() bool { return r.Apply(r.ctx, pod) == nil })
	r.ready("host")
	for what, command := range map[string]string{
		"an address": "echo >/dev/tcp/203.0.113.9/80", "the API server": "echo >/dev/tcp/192.0.2.1/6443", "the upstream": "echo >/dev/tcp/198.51.100.10/443",
	} {
		if out, err := r.inside("host", "timeout 5 bash -c '"+command+"'"); err == nil {
			r.t.Errorf("%s: reached by a pod with hostNetwork: %s", what, out)
		}
	}
	r.remove("host")
	var kept []string
	for line := range strings.Lines(bindings) {
		if !strings.Contains(line, "resourceVersion:") && !strings.Contains(line, "uid:") {
			kept = append(kept, line)
		}
	}
	_, err := r.Kubectl(r.ctx, strings.Join(kept, ""), "create", "-f", "-")
	must.OK(r.t, err)
}

// Requests that need a secret of a Vault that is down fail and say so, and no others.
func testVaultDown(r *rig, n *node) {
	const file = "/etc/sallyport/sallyport.yaml"
	before := n.must("cat", file)
	login := n.startVault()
	must.OK(r.t, n.Write(file, strings.Replace(before, "credentials:\n", `- destination: vault.example.test
  authRef: openai
  upstream: {addresses: [198.51.100.10], roots: upstream.pem, resolver: "198.51.100.10:53"}
credentials:
- {name: openai, cache: 0s, source: {vault: {path: secret/data/openai, field: token}}}
`, 1)+login))
	must.OK(r.t, n.KillDaemon(daemon))
	n.startDaemon()
	const ask = "curl -sS -i --max-time 20 https://vault.example.test/"
	var out string
	wants := func(what, want string) {
		r.t.Helper()
		defer func() {
			if r.t.Failed() {
				r.t.Log(out)
			}
		}()
		must.Soon(r.t, what, func() bool {
			out, _ = r.inside("box", ask)
			return strings.Contains(out, want)
		})
	}
	wants("Vault's secret", `"saw_key":true`)
	n.must("pkill", "-9", "-f", "until-eof")
	wants("a refusal without Vault", "503")
	r.served("box") // with the daemon's own secret
	must.OK(r.t, n.KillDaemon(daemon))
	n.startDaemon() // it needs no Vault to begin
	wants("a refusal of the next daemon", "503")
	must.OK(r.t, n.Write(file, before))
	must.OK(r.t, n.KillDaemon(daemon))
	n.startDaemon()
}

// startVault starts the real Vault core on the node, and returns the configuration by which the daemon logs in.
func (n *node) startVault() string {
	n.r.t.Helper()
	bin, err := vaultcore.Binary()
	must.OK(n.r.t, err)
	n.must("mkdir", "-p", "/etc/sallyport/vault")
	must.OK(n.r.t, n.StartDaemon("vault", "sh", "-c", `{ echo '{"token":"`+n.r.key+`"}'; sleep infinity; } | "$0" -listen 127.0.0.1:8200 -tls /etc/sallyport/vault -put openai -until-eof`, bin))
	var ready struct{ Address, RoleID, SecretID, CAFile string }
	must.Soon(n.r.t, "Vault", func() bool {
		text, _ := os.ReadFile(n.Log("vault"))
		for line := range strings.Lines(string(text)) {
			if json.Unmarshal([]byte(line), &ready) == nil && ready.RoleID != "" {
				return true
			}
		}
		return false
	})
	must.OK(n.r.t, n.Write("/etc/sallyport/secret-id", ready.SecretID))
	n.must("chmod", "600", "/etc/sallyport/secret-id")
	return fmt.Sprintf("vault: {address: %q, roots: %q, auth: {appRole: {roleID: %q, secretIDFile: secret-id}}}\n", ready.Address, ready.CAFile, ready.RoleID)
}

// After a power cut the kubelet comes before the daemon: no pod runs without it.
func testPowerCut(r *rig, n *node) {
	r.pod("flood", floods, on("n1"))
	r.ready("flood")
	must.OK(r.t, n.PowerCut())
	must.OK(r.t, n.PowerUp())
	r.refused("flood")
	r.silent("after a power cut, without a daemon")
	n.startDaemon()
	r.served("box")
	r.ready("flood")
	n.recorded(`"agents/flood"`, "203.0.113.9")
	r.remove("flood")
}

// A Sandbox whose node is lost is made again on another one: the same name and ID, and it trusts
// the other node's intermediate, which is below the same root.
func testNodeLost(r *rig, n *node) {
	n2 := r.node("n2")
	r.kubectl("cordon", "n2")
	must.OK(r.t, r.sandbox.Template(r.ctx, "agent", map[string]string{"app": "agent"}, map[string]any{
		"runtimeClassName": "sallyport", "terminationGracePeriodSeconds": 0,
		"containers": []any{map[string]any{"name": "main", "image": kubernetes.Image, "imagePullPolicy": "Never", "command": []any{"sleep", "infinity"}}},
	}))
	names, err := r.sandbox.Pool(r.ctx, "pool", "agent", 1)
	must.OK(r.t, err)
	name := names[0]
	r.ready(name)
	if out, err := r.inside(name, ask); err == nil && strings.Contains(out, `"saw_key":true`) {
		r.t.Errorf("a pod that nobody has claimed: %s", out)
	}
	must.OK(r.t, r.sandbox.Claim(r.ctx, "mine", "pool", name, map[string]string{"user": "ann"}))
	r.served(name)
	trust, err := r.inside(name, "cat $SSL_CERT_FILE")
	must.OK(r.t, err)
	id, by := n.idOf(name), r.shownBy(name)

	must.OK(r.t, n.PowerCut())
	r.kubectl("uncordon", "n2")
	r.kubectl("delete", "node", "n1")
	r.remove(name) // as podgc does when the node has been gone for long
	must.OK(r.t, r.sandbox.Resume(r.ctx, name))
	r.ready(name)
	inner := *n2
	inner.r = r
	r.served(name)
	if again, err := r.inside(name, "cat $SSL_CERT_FILE"); err != nil || again != trust {
		r.t.Errorf("it trusts %q, %v, and trusted %q before", again, err, trust)
	}
	if again := r.shownBy(name); again == by {
		r.t.Errorf("both nodes have one intermediate: %s", by)
	}
	if again := inner.idOf(name); again != id || id == "" {
		r.t.Errorf("its ID was %q and is %q", id, again)
	}
	inner.recorded(`"agents/`+name+`"`, "api.example.test", `"n2"`)
}
