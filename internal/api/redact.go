package api

import (
	"errors"
	"log/slog"
	"net/http"
	"regexp"
	"slices"

	"sallyport/policy"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// What is the host's own is not told to tenants: where files of it are, and what the
// engine says.

// confined is the answer to a tenant.
type confined struct {
	http.ResponseWriter
	log *slog.Logger
}

// Unwrap is for http.ResponseController.
func (c confined) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// informed is the answer to a caller of the host's own who may list the names of
// credentials.
type informed struct{ http.ResponseWriter }

// Unwrap is for http.ResponseController.
func (i informed) Unwrap() http.ResponseWriter { return i.ResponseWriter }

// find returns the writer of a type that an answer goes through.
func find[T http.ResponseWriter](w http.ResponseWriter) (found T, ok bool) {
	for {
		if found, ok = w.(T); ok {
			return found, true
		}
		u, more := w.(interface{ Unwrap() http.ResponseWriter })
		if !more {
			return found, false
		}
		w = u.Unwrap()
	}
}

// problemFor is problem for who is answered: to a tenant, what has gone wrong on the
// host is for its log.
func problemFor(w http.ResponseWriter, err error) *Problem {
	p := problem(err)
	var secret *sandbox.SecretError
	if _, knows := find[informed](w); knows && errors.As(err, &secret) {
		p.Detail += ": " + secret.Whose()
	}
	c, ok := find[confined](w)
	if !ok || p.Status < http.StatusInternalServerError || errors.Is(err, sandbox.ErrNoSpace) || p.Type == client.ProblemType+"agent-silent" {
		return p
	}
	c.log.Warn("a tenant's call has failed on the host", "error", err)
	p.Detail = p.Title + ": the host's operators can see why in its log"
	return p
}

// nameless is an explanation without the names of credentials, for callers who may not
// list them: how many are injected, and how, it still says.
func nameless(r *http.Request, e policy.Explanation) policy.Explanation {
	if PrincipalOf(r.Context()).May(ScopeSecrets) {
		return e
	}
	e.Credentials, e.Decision.Inject = slices.Clone(e.Credentials), slices.Clone(e.Decision.Inject)
	for i := range e.Credentials {
		e.Credentials[i] = "(needs scope secrets)"
	}
	for i := range e.Decision.Inject {
		e.Decision.Inject[i].Credential = "(needs scope secrets)"
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
