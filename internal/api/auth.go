package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"sallyport/audit"
	"sallyport/internal/connlimit"
)

type (
	sourceKey      struct{}
	limitedConnKey struct{}
)

// RemoteContext is an http.Server's ConnContext for a listener that others reach
// too: who calls there shows an API key.
func RemoteContext(ctx context.Context, c net.Conn) context.Context {
	if over, ok := c.(*tls.Conn); ok {
		if g, ok := over.NetConn().(*limitedConn); ok {
			ctx = context.WithValue(ctx, limitedConnKey{}, g)
		}
	}
	return context.WithValue(ctx, sourceKey{}, connlimit.Network(c.RemoteAddr()))
}

// authenticate says who calls. With an error the Principal may still say who that
// is.
func (h *handler) authenticate(r *http.Request) (Principal, error) {
	if p, ok := r.Context().Value(peerKey{}).(peer); ok {
		return p.principal(h.opt.Users)
	}
	from, ok := r.Context().Value(sourceKey{}).(netip.Prefix)
	if !ok || h.opt.Keys == nil {
		return Principal{}, fmt.Errorf("%w: nothing says who is there", errUnknown)
	}
	scheme, text, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") {
		// One who has a key is let through whatever others at their address do: a
		// bound for all of them would be a way to lock them out, and keys that
		// cannot be guessed need none.
		if k, ok := h.opt.Keys.Verify(strings.TrimSpace(text)); ok {
			who := k.principal()
			if g, ok := r.Context().Value(limitedConnKey{}).(*limitedConn); ok {
				return who, g.admit(who)
			}
			return who, nil
		}
	}
	if !h.failures.Allow(from.String()) {
		return Principal{}, errTooMany
	}
	return Principal{}, fmt.Errorf("%w: send an API key that is valid as Authorization: Bearer KEY; `sallyport key create` on the host makes one", errUnknown)
}

// Bounds of what is refused.
const (
	failureEvery = 10 * time.Second // a source may fail to show a key once in that time,
	failureBurst = 10               // and so often at once
	maxSources   = 4096             // counted apart; those beyond are counted together

	refusedWithin = time.Second // for the rest of a call that is refused to arrive
)

// errTooMany refuses a source that has failed too often.
var errTooMany = errors.New("too many calls without a key that is known")

// refuse answers a call that is not let through, and records it.
func (h *handler) refuse(w http.ResponseWriter, r *http.Request, who Principal, err error) {
	source := who.ID // on the socket, and of a key that lacks a scope
	if from, ok := r.Context().Value(sourceKey{}).(netip.Prefix); ok && source == "" {
		source = from.String()
	}
	if n := h.refusals.Count(source); n > 0 && h.opt.Recorder != nil {
		e := event("api", "API call refused", "refused")
		e.StatusID, e.SeverityID = audit.StatusFailure, audit.SeverityLow
		e.Detail = err.Error()
		if n > 1 {
			e.Count = n
		}
		e.HTTPRequest = &audit.HTTPRequest{Method: clip(r.Method, 16), URL: &audit.URL{Path: clip(r.URL.Path, 256)}}
		if from, ok := r.Context().Value(sourceKey{}).(netip.Prefix); ok {
			e.Source = &audit.Endpoint{IP: from.Addr().String()}
		}
		if who.Operator.Name != "" {
			e.Actor = who.actor()
		}
		if lost := h.opt.Recorder.Enqueue(e); lost != nil {
			h.opt.Logger.Error("an event was lost", "message", e.Message, "error", lost)
		}
	}
	// What such a caller still has to say is not waited for.
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(refusedWithin))
	writeProblem(w, err)
}

func clip(s string, most int) string {
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
