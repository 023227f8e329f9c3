package api

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// errWithdrawn is why what goes on with a key ends.
var errWithdrawn = errors.New("the API key was removed, or has expired")

// life is until when a key is valid. Whoever calls ends it again.
func (k *Keys) life(id string) (context.Context, context.CancelFunc) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.keys[id]
	if r == nil {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		return ctx, cancel
	}
	if r.life == nil {
		r.life, r.end = context.WithCancel(context.Background())
	}
	if r.Expires.IsZero() {
		return context.WithCancel(r.life)
	}
	return context.WithDeadline(r.life, r.Expires)
}

// lasting serves a call of a route that may take as long as its caller likes, for as
// long as the caller's key is valid: then its context is done, and the connection
// ends whatever is being read or written, also where it has been taken over.
func (h *handler) lasting(to route, who Principal, w http.ResponseWriter, r *http.Request) {
	life, done := h.opt.Keys.life(who.key)
	defer done()
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	control := http.NewResponseController(w)
	stop := context.AfterFunc(life, func() {
		cancel(errWithdrawn)
		past := time.Unix(1, 0)
		_ = errors.Join(control.SetReadDeadline(past), control.SetWriteDeadline(past)) // a connection without them is a test's
	})
	defer stop() // before done, which is no end of the key's
	to.serve(w, r.WithContext(ctx))
}

// lasts tells which calls take as long as the caller likes: those that read what
// comes, those that feed, and commands.
func (r route) lasts() bool { return !r.changes() || r.most > maxBuffered || r.taken }
