package api_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"sallyport/internal/api"
	"sallyport/policy/approval"
	"sallyport/policy/limit"
)

// limits knows one limit, and who reset it.
type limits struct{ resets []string }

func (l *limits) List(context.Context) ([]api.Limit, error) {
	list := []api.Limit{{Name: "a day/1", Per: "all", Subject: "all", Most: limit.Amount{Requests: 5}}}
	for _, r := range l.resets {
		list = append(list, api.Limit{Name: r})
	}
	return list, nil
}

func (l *limits) Reset(_ context.Context, by approval.Operator, name, subject string) (int, error) {
	if name != "a day/1" {
		return 0, fmt.Errorf("%w: %q", api.ErrNoLimit, name)
	}
	l.resets = append(l.resets, fmt.Sprintf("%s of %s by %s", name, subject, by.UID))
	return 3, nil
}

// The operator who resets a limit is the one that the kernel names at the other end of the
// socket.
func TestLimits(t *testing.T) {
	c, _, _ := serve(t, false)
	list, err := api.ListLimits.Do(t.Context(), c)
	if err != nil || len(list) != 1 || list[0].Most.Requests != 5 {
		t.Fatalf("%v %v", list, err)
	}
	r, err := api.ResetLimit.Do(t.Context(), c, api.ResetRequest{Subject: "demo"}, "a day/1")
	if err != nil || r.Reset != 3 {
		t.Fatalf("%v %v", r, err)
	}
	list, err = api.ListLimits.Do(t.Context(), c)
	if want := fmt.Sprintf("a day/1 of demo by %d", os.Getuid()); err != nil || list[1].Name != want {
		t.Errorf("%v %v, want %s", list, err, want)
	}
}
