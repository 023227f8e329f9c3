package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"sallyport/internal/hostname"
	"sallyport/policy"
	"sallyport/policy/finding"
)

// Pods configures a node of Kubernetes (engine.kind: pods), whose pods of the
// RuntimeClass sallyport are the sandboxes. Kubernetes makes, starts and ends them.
type Pods struct {
	// Node is this node's name in Kubernetes. Default: $NODE_NAME, then the host's name.
	// Example: worker-1
	Node string `yaml:"node"`
	// Cluster names the cluster in each audit record. Default: none.
	// Example: prod
	Cluster string `yaml:"cluster"`
	// Kubeconfig is the file by which the API server is reached, over https alone. Default:
	// the service account of the pod that the daemon is in.
	// Example: /etc/sallyport/kubeconfig
	Kubeconfig string `yaml:"kubeconfig"`
	// CA is what the pods' certificates are below: an intermediate of this node, below the
	// one root that all pods trust; needed.
	// Example: {certificate: /etc/sallyport/ca/tls.crt, key: /etc/sallyport/ca/tls.key}
	CA PodsCA `yaml:"ca"`
	// Local are ranges that no pod may have as an upstream, unless a rule's
	// upstream.addresses names a part of one and nothing else: those of the cluster's
	// nodes, pods and services. This node's own addresses and its range of pods, and the
	// API server, are so without being listed. Default: none.
	// Example: [10.96.0.0/12, 10.244.0.0/16]
	Local []netip.Prefix `yaml:"local"`
	// Router takes requests for ports of the sandboxes of all nodes, as agent-sandbox's SDKs
	// send them to a router, and as its router sends them to a proxy. expose rules decide
	// about them. Default: none.
	// Example: {listen: "0.0.0.0:7443", certificate: tls.crt, key: tls.key, clients: [{name: agents-api, tokenFile: token, namespaces: [agents]}]}
	Router PodsRouter `yaml:"router"`
}

// PodsRouter is the listener for those requests, on each node. It speaks TLS alone.
type PodsRouter struct {
	// Listen is host:port on the node's addresses: the port is the same on all nodes, which
	// pass requests on to each other. Default: none, and no request comes in.
	// Example: 0.0.0.0:7443
	Listen string `yaml:"listen"`
	// Certificate is a PEM file with the certificate of the name that clients use, and what
	// is between it and its root. All nodes have certificates of the same name and below
	// the same authority, or the same certificate. A changed file takes effect within
	// seconds.
	// Example: /router/tls/tls.crt
	Certificate string `yaml:"certificate"`
	// Key is the PEM file of its key, which nobody else can read (0600), but root's group
	// may (0440).
	// Example: /router/tls/tls.key
	Key string `yaml:"key"`
	// Clients may send requests; at least one is needed.
	// Example: [{name: agents-api, tokenFile: /router/tokens/agents-api, namespaces: [agents]}]
	Clients []PodsRouterClient `yaml:"clients"`
}

// PodsRouterClient may ask the sandboxes of some namespaces.
type PodsRouterClient struct {
	// Name is the client's in the audit log: 1 to 63 of a-z, 0-9 and -. Required.
	// Example: agents-api
	Name string `yaml:"name"`
	// TokenFile has the client's token, of at least 32 characters, or two, one a line, while
	// one takes the place of the other. A changed file takes effect within seconds; without
	// the file the client is refused. Required.
	// Example: /router/tokens/agents-api
	TokenFile string `yaml:"tokenFile"`
	// Namespaces are those whose sandboxes the client may ask. Required.
	// Example: [agents]
	Namespaces []string `yaml:"namespaces"`
}

// PodsCA is a node's intermediate: files, or Vault. It may have one intermediate below it
// (path length 1 or more): each pod has one of its own.
type PodsCA struct {
	// Certificate is a PEM file with the node's certificate and what is between it and
	// the root, as cert-manager writes it for a Certificate with isCA. A changed file
	// takes effect at once.
	// Example: /etc/sallyport/ca/tls.crt
	Certificate string `yaml:"certificate"`
	// Key is the PEM file of its key, which nobody else can read (0600), but root's group
	// may (0440), as cert-manager mounts it.
	// Example: /etc/sallyport/ca/tls.key
	Key string `yaml:"key"`
	// Vault has the server of vault.address sign the certificate of a key that the node
	// makes and keeps, and renew it when half of its time is over.
	// Example: {mount: pki, ttl: 720h}
	Vault *PodsVault `yaml:"vault"`
}

// PodsVault is Vault's PKI engine, which signs by MOUNT/root/sign-intermediate.
type PodsVault struct {
	// Mount is the path that the engine is mounted at. Default: pki.
	// Example: pki
	Mount string `yaml:"mount"`
	// TTL is for how long a node's certificate is good, from 1h to 8760h. Default: 720h.
	// Example: 720h
	TTL Duration `yaml:"ttl"`
}

func (p *Pods) fill(kind string) {
	if kind != "pods" {
		return
	}
	if p.Node == "" {
		host, _ := os.Hostname()
		p.Node = cmp.Or(os.Getenv("NODE_NAME"), host)
	}
	if v := p.CA.Vault; v != nil {
		v.Mount, v.TTL = cmp.Or(v.Mount, "pki"), cmp.Or(v.TTL, Duration(720*time.Hour))
	}
}

// notWithPods are keys of what a daemon does for sandboxes that it makes itself, and what
// does it in Kubernetes.
var notWithPods = []struct{ key, instead string }{
	{"engine.host", "remove it: containerd runs the pods"},
	{"engine.runsc", "remove it: containerd's runtime handler names runsc"},
	{"sandbox", "remove it: images, limits and pools are those of pods, of agent-sandbox's SandboxTemplate and SandboxWarmPool"},
	{"registries", "remove it: imagePullSecrets of the pods log in"},
	{"ssh", "remove it: use kubectl exec and kubectl cp"},
	{"memory", "remove it: use a volume, as of a PersistentVolumeClaim"},
}

func (v *validator) pods(c *Config) {
	p := c.Pods
	if c.Engine.Kind != "pods" {
		if _, there := c.Positions["pods"]; there {
			v.fail("pods", fmt.Sprintf("is of no use to an engine of kind %s", c.Engine.Kind), "remove it, or write engine: {kind: pods}")
		}
		return
	}
	for _, not := range notWithPods {
		if _, there := c.Positions[not.key]; there {
			v.fail(not.key, "is not for pods, which Kubernetes makes", not.instead)
		}
	}
	if p.Node == "" {
		v.fail("pods.node", "is missing, and the host has no name", "write this node's name in Kubernetes")
	}
	for i, l := range p.Local {
		if l != l.Masked() {
			v.fail(fmt.Sprintf("pods.local[%d]", i), fmt.Sprintf("%s has bits set beyond its length", l), "write "+l.Masked().String())
		}
	}
	v.podsCA(c)
	v.podsRouter(p.Router)
}

func (v *validator) podsRouter(r PodsRouter) {
	if r.Listen == "" {
		if r.Certificate+r.Key != "" || len(r.Clients) > 0 {
			v.fail("pods.router.listen", "is missing, so the rest of pods.router is of no use", "write listen: 0.0.0.0:7443")
		}
		return
	}
	v.listen("pods.router.listen", r.Listen)
	if r.Certificate == "" || r.Key == "" {
		v.fail("pods.router", "has not both of certificate and key: tokens pass over TLS only", "write both, as of a Secret of the type kubernetes.io/tls")
	}
	if len(r.Clients) == 0 {
		v.fail("pods.router.clients", "is missing, so that nobody could ask", "write clients: [{name: …, tokenFile: …, namespaces: […]}]")
	}
	names := map[string]bool{}
	for i, c := range r.Clients {
		path := fmt.Sprintf("pods.router.clients[%d]", i)
		switch {
		case !hostname.Label(c.Name):
			v.fail(path+".name", fmt.Sprintf("%q is not a name of 1 to 63 of a-z, 0-9 and -", c.Name), "write one as agents-api")
		case names[c.Name]:
			v.fail(path+".name", fmt.Sprintf("%q is another client's too", c.Name), "write another name: the audit log tells clients apart by it")
		}
		names[c.Name] = true
		if c.TokenFile == "" {
			v.fail(path+".tokenFile", "is missing", "write the path of a file with a token of 32 characters or more")
		}
		if len(c.Namespaces) == 0 {
			v.fail(path+".namespaces", "is missing, so that the client could ask no sandbox", "list the namespaces whose sandboxes it may ask")
		}
		for j, n := range c.Namespaces {
			if !hostname.Label(n) {
				v.fail(fmt.Sprintf("%s.namespaces[%d]", path, j), fmt.Sprintf("%q is not the name of a namespace", n), "list each namespace by its name")
			}
		}
	}
}

// anyNamespace warns of rules that give a credential for a label, whose namespace they leave
// open. One that selects nothing at all means what it says.
func (c *Config) anyNamespace() (findings []finding.Finding) {
	if c.Engine.Kind != "pods" {
		return nil
	}
	for i, r := range c.EgressAuth {
		if s := r.Sandboxes; len(s.Names) > 0 || len(s.Tags) == 0 || s.Tags[tagNamespace] != "" {
			continue
		}
		path := fmt.Sprintf("egressAuth[%d].sandboxes", i)
		findings = append(findings, finding.Finding{
			Kind: finding.ToAnyNamespace, Severity: finding.Warning, Position: c.Position(path), Path: path,
			Message: "pods of every namespace can have these tags, which are their labels, and so the credential",
			Fix:     "add the namespace's tag, as in tags: {" + tagNamespace + ": agents, …}",
		})
	}
	return findings
}

// tagNamespace is sandbox.TagNamespace.
const tagNamespace = "sallyport.namespace"

func (v *validator) podsCA(c *Config) {
	ca := c.Pods.CA
	files := ca.Certificate != "" || ca.Key != ""
	switch {
	case files == (ca.Vault != nil):
		v.fail("pods.ca", "does not say one way to this node's intermediate", "write certificate and key, as cert-manager's csi-driver mounts them, or vault")
	case files && (ca.Certificate == "" || ca.Key == ""):
		v.fail("pods.ca", "has one of certificate and key", "write both")
	case ca.Vault == nil:
	case c.Vault.Address == "":
		v.fail("vault.address", "is missing, and pods.ca comes from Vault", "write address: https://vault.example.com:8200")
	case !policy.VaultPath(strings.Trim(ca.Vault.Mount, "/")):
		v.fail("pods.ca.vault.mount", fmt.Sprintf("%q is not the path of a mount", ca.Vault.Mount), "write one as pki")
	default:
		between(v, "pods.ca.vault.ttl", time.Duration(ca.Vault.TTL), time.Hour, 8760*time.Hour, "from 1h to 8760h", "write a time as 720h")
	}
}
