package api

import (
	"errors"
	"log/slog"
	"net/http"
	"regexp"

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

func confinedOf(w http.ResponseWriter) (c confined, ok bool) {
	for {
		if c, ok = w.(confined); ok {
			return c, true
		}
		u, more := w.(interface{ Unwrap() http.ResponseWriter })
		if !more {
			return confined{}, false
		}
		w = u.Unwrap()
	}
}

// problemFor is problem for who is answered: to a tenant, what has gone wrong on the
// host is for its log.
func problemFor(w http.ResponseWriter, err error) *Problem {
	p := problem(err)
	c, ok := confinedOf(w)
	if !ok || p.Status < http.StatusInternalServerError || errors.Is(err, sandbox.ErrNoSpace) || p.Type == client.ProblemType+"agent-silent" {
		return p
	}
	c.log.Warn("a tenant's call has failed on the host", "error", err)
	p.Detail = p.Title + ": the host's operators can see why in its log"
	return p
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
