package api_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/retention"
	"sallyport/internal/api"
	"sallyport/sandbox/client"
)

// kept has holds, and one segment that can be deleted.
type kept struct {
	holds   []retention.Hold
	deleted []string
}

func (k *kept) Holds() ([]retention.Hold, error) { return k.holds, nil }

func (k *kept) AddHold(ctx context.Context, name, reason string) (retention.Hold, error) {
	if slices.ContainsFunc(k.holds, func(h retention.Hold) bool { return h.Name == name }) {
		return retention.Hold{}, retention.ErrHoldExists
	}
	k.holds = append(k.holds, retention.Hold{Name: name, Reason: reason, By: audit.ByWhom(ctx), Since: time.Now()})
	return k.holds[len(k.holds)-1], nil
}

func (k *kept) RemoveHold(_ context.Context, name, reason string) error {
	n := len(k.holds)
	if k.holds = slices.DeleteFunc(k.holds, func(h retention.Hold) bool { return h.Name == name }); len(k.holds) == n {
		return fmt.Errorf("%w: %s", retention.ErrNoHold, name)
	}
	return nil
}

func (k *kept) Delete(_ context.Context, before time.Time, force bool) (retention.Plan, error) {
	if len(k.holds) > 0 {
		return retention.Plan{}, fmt.Errorf("%w: %s", retention.ErrHeld, k.holds[0].Name)
	}
	k.deleted = append(k.deleted, fmt.Sprint(before.Unix(), force))
	return retention.Plan{First: 1, Last: 9, Segments: 1, Bytes: 100}, nil
}

// Operators hold records, and have them deleted: the kernel or the key says who they are.
func TestRetention(t *testing.T) {
	c, _, h := serve(t, false)
	hold, err := api.AddHold.Do(t.Context(), c, api.HoldReason{Reason: "court"}, "case-7")
	if err != nil || hold.Name != "case-7" || !strings.HasPrefix(hold.By, "unix:") && hold.By == "" {
		t.Fatal(hold, err)
	}
	problem := func(what string, err error, kind string) {
		t.Helper()
		var p *client.Problem
		if !errors.As(err, &p) || !strings.HasSuffix(p.Type, kind) {
			t.Errorf("%s: %v, want %s", what, err, kind)
		}
	}
	_, err = api.AddHold.Do(t.Context(), c, api.HoldReason{Reason: "court"}, "case-7")
	problem("the same name", err, "name-taken")
	list, err := api.ListHolds.Do(t.Context(), c)
	if err != nil || len(list) != 1 || list[0].Reason != "court" {
		t.Error(list, err)
	}
	before := time.Unix(1_800_000_000, 0).UTC()
	_, err = api.DeleteAudit.Do(t.Context(), c, api.DeleteRequest{Before: before})
	problem("a hold", err, "held")
	problem("another hold", api.ReleaseHold.Do(t.Context(), c, api.HoldReason{Reason: "over"}, "case-8"), "no-hold")
	if err := api.ReleaseHold.Do(t.Context(), c, api.HoldReason{Reason: "over"}, "case-7"); err != nil {
		t.Error(err)
	}
	p, err := api.DeleteAudit.Do(t.Context(), c, api.DeleteRequest{Before: before, Force: true})
	if err != nil || p.Last != 9 || !slices.Equal(h.retention.deleted, []string{"1800000000 true"}) {
		t.Error(p, err, h.retention.deleted)
	}
	_, err = api.DeleteAudit.Do(t.Context(), c, api.DeleteRequest{})
	problem("no time", err, "bad-request")
}
