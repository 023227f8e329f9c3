package gatehouse

import (
	"reflect"
	"strings"

	"sallyport/gateway/upstream"
	"sallyport/policy"
)

// changed is called when another policy has begun to decide.
func (in *Worker) changed() {
	in.gateway.Redecide()
	if in.ctx.Err() == nil { // else all connections are closed soon
		in.work.Go(func() { in.upstreams.Retire(in.gone()) })
	}
}

// gone tells which routes upstream no request can take any more: kept
// connections would show the upstream, or its proxy, a sandbox, a credential or a
// certificate of before.
func (in *Worker) gone() func(upstream.Route) bool {
	who := map[string]policy.Sandbox{}
	in.mu.RLock()
	for _, s := range in.identities {
		who[s.ID] = s
	}
	in.mu.RUnlock()
	for _, c := range in.clients.List() {
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
		d := in.engine.Decide(in.ctx, policy.Input{Phase: policy.PhaseConnect, Sandbox: s, Destination: to, Protocol: protocol})
		if d.Action != policy.Allow || !reflect.DeepEqual(d.Upstream, r.Upstream) {
			return true // where several rules say how, this costs a connection
		}
		for name := range strings.SplitSeq(r.Credential, ",") {
			if name != "" && !in.engine.Bound(name, r.Host, r.Port) {
				return true
			}
		}
		return false
	}
}
