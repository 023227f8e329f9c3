package api_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"sallyport/internal/api"
	"sallyport/sandbox/client"
)

// sinks has one, named siem.
type sinks struct{}

func (sinks) TestSink(_ context.Context, name string) (api.SinkTest, error) {
	if name != "siem" {
		return api.SinkTest{}, fmt.Errorf("%w: %s", api.ErrNoSink, name)
	}
	return api.SinkTest{Sink: name, UID: "u", Sequence: 7, Answer: "200 OK"}, nil
}

// State says what is wrong, and counts only that as not ok.
func TestSinkState(t *testing.T) {
	away := time.Now().Add(-time.Hour)
	for _, tt := range []struct {
		sink api.Sink
		ok   bool
		says string
	}{
		{api.Sink{}, true, "nothing yet"},
		{api.Sink{Sent: 3, Answer: "200 OK", Waiting: 2, WaitingBytes: 2048}, true, "answers: 200 OK; 2 records wait (2KiB)"},
		{api.Sink{Sent: 3, Answer: "connection refused", Away: away}, false, away.Local().Format(time.DateTime) + ": connection refused"},
		{api.Sink{Sent: 3, Full: true}, false, "more than its spool may hold"},
		{api.Sink{Sent: 3, Refused: 1, Lost: 2}, false, "refused and 2 that the log lost"},
	} {
		if text, ok := tt.sink.State(); ok != tt.ok || !strings.Contains(text, tt.says) {
			t.Errorf("%+v: %q, %v; want %q, %v", tt.sink, text, ok, tt.says, tt.ok)
		}
	}
}

// A test of a sink shows what came back; one that is not there is not found.
func TestTestSink(t *testing.T) {
	c, _, _ := serve(t, false)
	got, err := api.TestSink.Do(t.Context(), c, client.None{}, "siem")
	if err != nil || got != (api.SinkTest{Sink: "siem", UID: "u", Sequence: 7, Answer: "200 OK"}) {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = api.TestSink.Do(t.Context(), c, client.None{}, "other")
	if err == nil || !strings.Contains(err.Error(), "no such sink") {
		t.Errorf("%v", err)
	}
}
