package credential_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/gateway/credential"
	"sallyport/gateway/credential/sent"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// disk is a Keep.
type disk struct{ saved sent.Saved }

func (d *disk) Load(context.Context, string) (sent.Saved, error) { return d.saved, nil }

func (d *disk) Save(_ context.Context, _ string, more sent.Saved) error {
	return d.saved.Add(more)
}

// sendOne sends a secret that lives for some time, or without an end for 0.
func sendOne(t *testing.T, e *sent.Secrets, name, value string, life time.Duration) (lost map[string]int, err error) {
	t.Helper()
	must.OK(t, e.Load(t.Context()))
	s := &source{value: value}
	if life > 0 {
		s.expiry = time.Now().Add(life)
	}
	l, err := broker(map[string]credential.Source{name: s}).Lease(t.Context(), name, api)
	must.OK(t, err)
	must.OK(t, l.Apply(request(t, "https://api.example.com/v1"), policy.Inject{}))
	u, lost, err := e.Add(t.Context(), l)
	if err == nil {
		e.Release(u)
	}
	return lost, err
}

// However many tokens a sandbox has a source issue, its answers are searched for each that is
// taken still, and for secrets that do not expire; also after a restart.
func TestTokensDoNotDisplaceValidOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		all := &sent.BySandbox{Keep: d}
		restart := func() { all = &sent.BySandbox{Keep: d} }
		send := func(name, value string, life time.Duration) (map[string]int, error) {
			t.Helper()
			return sendOne(t, all.Of("sb-1"), name, value, life)
		}
		_, err := send("key", numbered(1000), 0)
		must.OK(t, err)
		_, err = send("long", numbered(1001), 3*time.Hour)
		must.OK(t, err)
		n, refused := 0, false
		for ; n < sent.Max; n++ {
			time.Sleep(10 * time.Second)
			if lost, err := send("token", numbered(n), time.Hour); err != nil {
				if !errors.Is(err, sent.ErrTooMany) {
					t.Fatal(err)
				}
				refused = true
				break
			} else if len(lost) > 0 {
				t.Fatalf("token %d displaces %v", n, lost)
			}
		}
		if !refused || n != sent.Max-2 {
			t.Errorf("%d tokens are sent, one more is refused: %v", n, refused)
		}
		find := func(when string, old bool) {
			t.Helper()
			e := all.Of("sb-1")
			must.OK(t, e.Load(t.Context()))
			for value, want := range map[int]string{1000: "key", 1001: "long", 0: "token", n - 1: "token"} {
				if value == 0 && old {
					want = ""
				}
				if got := says(e.Scrubber(), numbered(value)); got != want {
					t.Errorf("%s value %d is %q's, want %q", when, value, got, want)
				}
			}
		}
		find("when it is full,", false)
		restart()
		find("after a restart,", false)
		if _, err := send("token", numbered(n), time.Hour); !errors.Is(err, sent.ErrTooMany) {
			t.Errorf("after a restart, one more: %v", err)
		}

		time.Sleep(time.Hour) // all tokens have expired for more than five minutes but the last few
		lost, err := send("token", numbered(n), time.Hour)
		if err != nil || lost["token"] != 1 || len(lost) != 1 {
			t.Errorf("when tokens have expired: %v, %v", lost, err)
		}
		n++
		find("with another token,", true)
		restart()
		find("with another token, after a restart,", true)
	})
}

// A secret that was given a longer life is not dropped at the end of the first one.
func TestRenewedSecretIsNotDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		all := &sent.BySandbox{Keep: d}
		_, err := sendOne(t, all.Of("sb-1"), "lease", numbered(1000), time.Minute)
		must.OK(t, err)
		_, err = sendOne(t, all.Of("sb-1"), "lease", numbered(1000), 3*time.Hour)
		must.OK(t, err)
		all = &sent.BySandbox{Keep: d}
		time.Sleep(time.Hour)
		for n := range sent.Max {
			_, err := sendOne(t, all.Of("sb-1"), "token", numbered(n), time.Second)
			must.OK(t, err)
			time.Sleep(10 * time.Minute / sent.Max * 2)
		}
		if got := says(all.Of("sb-1").Scrubber(), numbered(1000)); got != "lease" {
			t.Errorf("the renewed secret is %q's", got)
		}
	})
}

// A source is asked less and less often, whatever a sandbox has upstreams answer.
func TestRefreshBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &source{value: "one"}
		b := broker(map[string]credential.Source{"key": lasting{src}})
		refused := func(d time.Duration) (asked int) {
			before := src.count()
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Second) {
				must.OK(t, refresh(t, b, src))
			}
			return src.count() - before
		}
		version(t, b)
		// At 0 s, 10 s, 30 s, 70 s, 150 s, 310 s and 630 s, then once in ten minutes.
		if first, then := refused(15*time.Minute), refused(time.Hour); first != 7 || then != 6 {
			t.Errorf("asked %d times in the first quarter of an hour and %d in the hour after it, want 7 and 6", first, then)
		}
		time.Sleep(20 * time.Minute)
		if again := refused(15 * time.Second); again != 2 {
			t.Errorf("after 20 minutes without a refusal it is asked %d times in 15 s, want 2", again)
		}
	})
}

// A secret whose source says that it outlives its lease is not dropped before its end.
func TestSecretThatEndsAfterItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := new(sent.BySandbox).Of("sb-1")
		l, err := broker(map[string]credential.Source{"lease": outliving{}}).Lease(t.Context(), "lease", api)
		must.OK(t, err)
		u, _, err := e.Add(t.Context(), l)
		must.OK(t, err)
		e.Release(u)
		time.Sleep(time.Hour)
		for n := range sent.Max {
			_, err = sendOne(t, e, "token", numbered(n), 3*time.Hour)
		}
		if got := says(e.Scrubber(), numbered(1000)); got != "lease" || !errors.Is(err, sent.ErrTooMany) {
			t.Errorf("the secret is %q's; the last token: %v", got, err)
		}
	})
}

// outliving is a source whose material is leased for a minute and taken for two hours.
type outliving struct{}

func (outliving) Read(context.Context) (credential.Material, error) {
	return credential.Material{
		Fields: map[string]credential.Secret{"token": credential.NewSecret(numbered(1000))}, Version: "1",
		Expires: time.Now().Add(time.Minute), Ends: time.Now().Add(2 * time.Hour),
	}, nil
}

// lasting is a source whose material holds for a day.
type lasting struct{ *source }

func (lasting) TTL() time.Duration { return 24 * time.Hour }

// refresh has the version in use refused; there is another for each question.
func refresh(t *testing.T, b *credential.Broker, src *source) error {
	t.Helper()
	l, err := b.Lease(t.Context(), "key", api)
	must.OK(t, err)
	src.set(fmt.Sprint("value-", time.Now().UnixNano()), nil)
	_, err = b.Refresh(t.Context(), "key", api, l.Version)
	return err
}
