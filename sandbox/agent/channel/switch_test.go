package channel_test

import (
	"context"
	"net/http"
	"testing"
	"time"
)

// An agent that switches protocols where nobody asked it to and says nothing then
// holds a call no longer than its caller waits: net/http leaves what has switched to
// whoever asked, and no end of a context ends a read of it.
func TestSwitchedUnasked(t *testing.T) {
	c := fake(t, say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", nil))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	said := make(chan error, 1)
	go func() {
		var v any
		said <- c.JSON(ctx, http.MethodGet, "/activity", nil, &v)
	}()
	select {
	case err := <-said:
		if err == nil {
			t.Error("it is taken for an answer")
		}
	case <-time.After(time.Minute):
		t.Error("the call goes on after its context has ended")
	}
}
