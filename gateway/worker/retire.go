package worker

import (
	"reflect"
	"strings"

	"sallyport/gateway/upstream"
	"sallyport/policy"
)

// policyChanged is called when another policy has begun to decide.
func (w *Worker) policyChanged() {
	w.gateway.Redecide()
	if w.ctx.Err() == nil { // else all connections are closed soon
		w.work.Go(func() { w.upstreams.Retire(w.retired()) })
	}
}

// retired returns a function that reports whether no request can take a route any more.
// Connections kept for such a route would show the upstream, or its proxy, a sandbox, a
// credential or a certificate of an earlier policy.
func (w *Worker) retired() func(upstream.Route) bool {
	who := map[string]policy.Sandbox{}
	w.mu.RLock()
	for _, s := range w.identities {
		who[s.ID] = s
	}
	w.mu.RUnlock()
	for _, c := range w.clients.List() {
		who[c.ID] = policy.Sandbox{Name: c.Name, ID: c.ID, Tags: c.Tags}
	}
	return func(r upstream.Route) bool {
		s, ok := who[r.Sandbox]
		if !ok {
			return true
		}
		protocol := policy.ProtocolHTTP
		if r.TLS {
			protocol = policy.ProtocolTLS
		}
		to := policy.Destination{Host: r.Host, Port: r.Port}
		d := w.engine.Decide(w.ctx, policy.Input{Phase: policy.PhaseConnect, Sandbox: s, Destination: to, Protocol: protocol})
		if d.Action != policy.Allow || !reflect.DeepEqual(d.Upstream, r.Upstream) {
			return true // where several rules say how, this costs a connection
		}
		for name := range strings.SplitSeq(r.Credential, ",") {
			if name != "" && !w.engine.Bound(name, r.Host, r.Port) {
				return true
			}
		}
		return false
	}
}
