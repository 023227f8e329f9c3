package api_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"sallyport/gateway/access"
	"sallyport/internal/api"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// exposures is a store without the daemon's policy and events.
type exposures struct{ store *access.Ports }

func (x exposures) Expose(_ context.Context, i sandbox.Info, port uint16, lasts time.Duration) (client.Exposed, error) {
	if port == 22 {
		return client.Exposed{}, api.ErrNotExposable
	}
	e, token, err := x.store.Add(i.Name, i.ID, i.Spec.Owner, port, lasts)
	return client.Exposed{Exposure: shown(e), Token: token, Visit: shown(e).URL + "?token=" + token}, err
}

func (x exposures) Unexpose(_ context.Context, i sandbox.Info, port uint16) error {
	return x.store.Remove(i.ID, port)
}

func (x exposures) List(i sandbox.Info) (list []client.Exposure) {
	for _, e := range x.store.List() {
		if e.SandboxID == i.ID {
			list = append(list, shown(e))
		}
	}
	return list
}

func shown(e access.Port) client.Exposure {
	return client.Exposure{Sandbox: e.Sandbox, Port: e.Port, URL: "http://" + e.Host() + ":7080/", Created: e.Created, Expires: e.Expires}
}

func TestExposures(t *testing.T) {
	root, _, h := serve(t, true)
	ctx := t.Context()
	acme, text := keyed(t, h, "acme", "acme", "admin")
	other, _ := keyed(t, h, "other", "other", "admin")
	box := need[sandbox.Info](t)(acme.Create(ctx, "box", sandbox.Spec{}))
	made := need[client.Exposed](t)(acme.Expose(ctx, "box", 8000, 2*time.Hour))
	if made.URL != "http://"+(access.Port{Sandbox: "box", SandboxID: box.ID, Port: 8000}).Host()+":7080/" || made.Visit != made.URL+"?token="+made.Token || made.Expires.Sub(made.Created) != 2*time.Hour {
		t.Errorf("got %+v", made)
	}
	if list := need[[]client.Exposure](t)(root.Exposures(ctx, "acme/box")); len(list) != 1 || list[0] != made.Exposure {
		t.Errorf("listed %+v", list)
	}
	if _, _, answer, _ := raw(t, h, text, "GET", "/v1/sandboxes/box/exposures", ""); strings.Contains(string(answer), "spe_") || strings.Contains(string(answer), "digest") {
		t.Errorf("a listing shows the token: %s", answer)
	}
	run := func(_ any, err error) error { return err }
	for name, tt := range map[string]struct {
		err    error
		status int
		kind   string
	}{
		"another tenant's":      {run(other.Expose(ctx, "box", 8000, time.Hour)), 404, "no-sandbox"},
		"another tenant's list": {run(other.Exposures(ctx, "box")), 404, "no-sandbox"},
		"another tenant's end":  {other.Unexpose(ctx, "box", 8000), 404, "no-sandbox"},
		"too long":              {run(acme.Expose(ctx, "box", 8000, 48*time.Hour)), 400, "bad-request"},
		"not in the policy":     {run(acme.Expose(ctx, "box", 22, time.Hour)), 403, "not-exposable"},
		"no port":               {acme.Unexpose(ctx, "box", 0), 400, "bad-request"},
		"not exposed":           {acme.Unexpose(ctx, "box", 9000), 404, "no-exposure"},
	} {
		if p := (*api.Problem)(nil); !errors.As(tt.err, &p) || p.Status != tt.status || p.Type != client.ProblemType+tt.kind {
			t.Errorf("%s: got %v, want %d %s", name, tt.err, tt.status, tt.kind)
		}
	}
	if err := acme.Unexpose(ctx, "box", 8000); err != nil {
		t.Error(err)
	}
	if list := need[[]client.Exposure](t)(root.Exposures(ctx, "acme/box")); len(list) != 0 {
		t.Errorf("after its end: %+v", list)
	}
	for i := range 32 {
		if err := run(acme.Expose(ctx, "box", uint16(9000+i), time.Hour)); err != nil {
			t.Fatal(fmt.Errorf("exposure %d: %w", i, err))
		}
	}
	err := run(acme.Expose(ctx, "box", 9032, time.Hour))
	if p := (*api.Problem)(nil); !errors.As(err, &p) || p.Status != 409 || p.Type != client.ProblemType+"full" || !strings.Contains(p.Detail, "at most 32") {
		t.Errorf("one too many: %v", err)
	}
}
