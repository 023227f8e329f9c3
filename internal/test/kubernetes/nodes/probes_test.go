//go:build kubernetes

package nodes

import (
	"strings"

	"sallyport/internal/test/kubernetes"
	"sallyport/internal/test/must"
)

// probed is a pod with a probe of each kind, and a hook. Its servers say in the log what they
// are asked: their program is in a ConfigMap.
const probed = `
apiVersion: v1
kind: ConfigMap
metadata: {name: servers, namespace: agents}
data:
  web.py: |
    import sys, http.server
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            print("asked for", self.path, flush=True)
            self.send_response(200)
            self.end_headers()
        def log_message(self, *args): pass
    http.server.ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), Handler).serve_forever()
  rpc.py: |
    # A health service (grpc.health.v1) that answers each call with SERVING: as much of
    # HTTP/2 (RFC 9113) and HPACK (RFC 7541) as that takes.
    import socketserver, sys
    def frame(kind, flags, stream, body=b""):
        return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body
    def text(s): return bytes([len(s)]) + s
    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            self.rfile.read(24) # the preface
            self.wfile.write(frame(4, 0, 0)) # SETTINGS
            while head := self.rfile.read(9):
                body, kind, stream = self.rfile.read(int.from_bytes(head[:3], "big")), head[3], int.from_bytes(head[5:], "big")
                if kind in (4, 6) and not head[4] & 1: # SETTINGS, PING
                    self.wfile.write(frame(kind, 1, 0, body if kind == 6 else b""))
                if kind == 0 and head[4] & 1: # the end of DATA
                    print("asked for health", flush=True)
                    self.wfile.write(frame(1, 4, stream, b"\x88\x0f\x10" + text(b"application/grpc")) +
                        frame(0, 0, stream, b"\0\0\0\0\2\x08\x01") + frame(1, 5, stream, b"\0" + text(b"grpc-status") + text(b"0")))
    socketserver.ThreadingTCPServer.allow_reuse_address = True
    socketserver.ThreadingTCPServer(("0.0.0.0", int(sys.argv[1])), Handler).serve_forever()
---
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: agents, labels: {LABEL: x}}
spec:
  nodeSelector: {kubernetes.io/hostname: n1}
  runtimeClassName: sallyport
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  volumes: [{name: servers, configMap: {name: servers}}]
  initContainers:
  - name: sidecar
    restartPolicy: Always
    image: IMAGE
    imagePullPolicy: Never
    command: [python3, /servers/web.py, "8081"]
    volumeMounts: [{name: servers, mountPath: /servers}]
    startupProbe: {tcpSocket: {port: 8081}, periodSeconds: 1, failureThreshold: 60}
  containers:
  - name: web
    image: IMAGE
    imagePullPolicy: Never
    command: [python3, /servers/web.py, "8080"]
    volumeMounts: [{name: servers, mountPath: /servers}]
    ports: [{name: web, containerPort: 8080}]
    startupProbe: {httpGet: {path: /started, port: web}, periodSeconds: 1, failureThreshold: 60}
    readinessProbe: {httpGet: {path: /ready, port: web}, periodSeconds: 1, timeoutSeconds: 5}
    livenessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, timeoutSeconds: 5, failureThreshold: 2}
    lifecycle: {postStart: {httpGet: {path: /hook, port: 8081}}} # the sidecar is there before
  - name: rpc
    image: IMAGE
    imagePullPolicy: Never
    command: [python3, /servers/rpc.py, "9090"]
    volumeMounts: [{name: servers, mountPath: /servers}]
    startupProbe: {grpc: {port: 9090}, periodSeconds: 1, failureThreshold: 60, timeoutSeconds: 5}
    livenessProbe: {grpc: {port: 9090}, periodSeconds: 1, failureThreshold: 2, timeoutSeconds: 5}
  - {name: closed, image: IMAGE, imagePullPolicy: Never, command: [python3, /servers/web.py, "8082"], volumeMounts: [{name: servers, mountPath: /servers}]}
`

// The kubelet's probes and hooks reach a pod, also while it is offline and while no daemon
// runs; no other port is open to the node, and none to its users.
func testProbes(r *rig, n *node) {
	for name, label := range map[string]string{"pooled": "agents.x-k8s.io/warm-pool-sandbox", "probed": "app"} {
		must.OK(r.t, r.Apply(r.ctx, strings.NewReplacer("IMAGE", kubernetes.Image, "NAME", name, "LABEL", label).Replace(probed)))
		r.ready(name)
		n.asked(name, "sidecar", "/hook", 0)
	}
	restarts := "jsonpath={.status.containerStatuses[*].restartCount} {.status.initContainerStatuses[*].restartCount}"
	address := r.kubectl("-n", "agents", "get", "pod", "probed", "-o", "jsonpath={.status.podIP}")
	n.must("curl", "-sS", "--max-time", "5", "http://"+address+":8080/root")
	for _, words := range [][]string{
		{"curl", "-sS", "--max-time", "3", "http://" + address + ":8082/"},
		{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "curl", "-sS", "--max-time", "3", "http://" + address + ":8080/"},
	} {
		if out, err := n.Exec(r.ctx, words...); err == nil {
			r.t.Errorf("%s: reached: %s", words, out)
		}
	}
	n.recorded("host-process", `"agents/probed"`, "8082")
	if out, err := r.inside("box", "curl -sS --max-time 3 http://"+address+":8080/box"); err == nil {
		r.t.Errorf("another pod reached the pod: %s", out)
	}

	must.OK(r.t, n.KillDaemon(daemon))
	n.probes("probed")
	n.startDaemon()
	n.probes("probed")
	r.served("probed")
	if got := r.kubectl("-n", "agents", "get", "pod", "probed", "-o", restarts); strings.Trim(got, "0 ") != "" {
		r.t.Errorf("containers were started again: %s", got)
	}
	r.ready("pooled", "probed")
	r.remove("pooled", "probed")
}

// probes waits for another probe of each kind that its server sees.
func (n *node) probes(pod string) {
	n.r.t.Helper()
	n.asked(pod, "web", "/ready", n.count(pod, "web", "/ready"))
	n.asked(pod, "rpc", "health", n.count(pod, "rpc", "health"))
}

// count is how often a container was asked for something, by its log on the node.
func (n *node) count(pod, container, what string) int {
	out, _ := n.Exec(n.r.ctx, "sh", "-c", "cat /var/log/pods/agents_"+pod+"_*/"+container+"/*.log")
	return strings.Count(out, "asked for "+what)
}

// asked waits until it was asked more often than before.
func (n *node) asked(pod, container, what string, before int) {
	n.r.t.Helper()
	must.Soon(n.r.t, container+" to be asked for "+what, func() bool { return n.count(pod, container, what) > before })
}
