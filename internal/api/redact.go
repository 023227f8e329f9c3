package api

import (
	"errors"
	"net/http"
	"regexp"
	"slices"

	"sallyport/policy"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// Tenants are not told what is the host's own: where its files are, and what the engine
// says.

// problemFor is the problem of an error for the caller of r. To a tenant it does not say
// what went wrong on the host: the host's log does. To a caller of the host's own that
// may list the names of credentials it says which credential an environment held.
func (h *handler) problemFor(r *http.Request, err error) *Problem {
	p, who := problem(err), PrincipalOf(r.Context())
	var secret *sandbox.SecretError
	if who.Tenant == "" && who.May(ScopeSecrets) && errors.As(err, &secret) {
		p.Detail += ": " + secret.Whose()
	}
	if who.Tenant == "" || p.Status < http.StatusInternalServerError || errors.Is(err, sandbox.ErrNoSpace) || p.Type == client.ProblemType+"agent-silent" {
		return p
	}
	h.opt.Logger.Warn("a tenant's call has failed on the host", "error", err)
	p.Detail = p.Title + ": the host's operators can see why in its log"
	return p
}

// needsSecrets stands for the name of a credential.
const needsSecrets = "(needs scope secrets)"

// nameless is an explanation without the names of credentials, for callers who may not
// list them: how many are injected, and how, it still says.
func nameless(r *http.Request, e policy.Explanation) policy.Explanation {
	if PrincipalOf(r.Context()).May(ScopeSecrets) {
		return e
	}
	e.Credentials, e.Decision.Inject = slices.Clone(e.Credentials), slices.Clone(e.Decision.Inject)
	for i := range e.Credentials {
		e.Credentials[i] = needsSecrets
	}
	for i := range e.Decision.Inject {
		e.Decision.Inject[i].Credential = needsSecrets
	}
	return e
}

// hostPath finds absolute paths of two parts and more.
var hostPath = regexp.MustCompile(`/(?:[^\s"'/:;,()]+/)+[^\s"':;,()]*`)

func pathless(text string) string { return hostPath.ReplaceAllString(text, "…") }

// infoFor is what a caller may see of a sandbox: where it lies is for the host's
// operators.
func infoFor(r *http.Request, i sandbox.Info) sandbox.Info {
	who := PrincipalOf(r.Context())
	if who.Tenant != "" || !who.May(ScopeAdmin) {
		i.Memory = ""
	}
	if who.Tenant != "" {
		i.Reason, i.Lost = pathless(i.Reason), pathless(i.Lost)
	}
	return i
}

// eventFor likewise.
func eventFor(who Principal, e client.Event) client.Event {
	if who.Tenant != "" {
		e.Message, e.Detail, e.Reason = pathless(e.Message), pathless(e.Detail), pathless(e.Reason)
	}
	return e
}
