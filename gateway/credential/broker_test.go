package credential_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/gateway/credential"
	"sallyport/gateway/credential/scrub"
	"sallyport/internal/test/must"
)

// source answers as it was told last.
type source struct {
	mu     sync.Mutex
	value  string
	expiry time.Time
	err    error
	delay  time.Duration
	reads  int
}

func (s *source) Read(ctx context.Context) (credential.Material, error) {
	s.mu.Lock()
	s.reads++
	value, err, expiry, delay := s.value, s.err, s.expiry, s.delay
	s.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return credential.Material{}, errors.Join(credential.ErrUnavailable, ctx.Err())
	}
	return credential.Material{Fields: map[string]credential.Secret{"token": credential.NewSecret(value)}, Version: value, Expires: expiry}, err
}

func (s *source) set(value string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.value, s.err = value, err
}

func (s *source) slow(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay = by
}

func (s *source) expire(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expiry = at
}

func (s *source) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads
}

type remote struct{ *source }

func (remote) TTL() time.Duration { return 30 * time.Second }

var api = credential.Binding{Host: "api.example.com", Port: 443, Verified: true}

func broker(sources map[string]credential.Source) *credential.Broker {
	return credential.New(credential.Options{
		Sources: sources,
		Timeout: 5 * time.Second,
		Bound: func(name, host string, port uint16) bool {
			return name != "unbound" && host == api.Host && port == api.Port
		},
	})
}

func TestLeaseRefusals(t *testing.T) {
	src := &source{value: "s3cr3t-value-0123"}
	empty := &source{err: credential.ErrNoSecret}
	b := broker(map[string]credential.Source{"key": src, "unbound": src, "empty": empty})
	tests := []struct {
		name, credential string
		to               credential.Binding
		want             error
	}{
		{"bound", "key", api, nil},
		{"another host", "key", credential.Binding{Host: "evil.example.com", Port: 443, Verified: true}, credential.ErrNotBound},
		{"another port", "key", credential.Binding{Host: api.Host, Port: 8443, Verified: true}, credential.ErrNotBound},
		{"without TLS", "key", credential.Binding{Host: api.Host, Port: 443}, credential.ErrNotBound},
		{"a credential of another rule", "unbound", api, credential.ErrNotBound},
		{"not configured", "nobody", api, credential.ErrUnknown},
		{"no secret yet", "empty", api, credential.ErrNoSecret},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reads := src.count()
			l, err := b.Lease(t.Context(), tt.credential, tt.to)
			if !errors.Is(err, tt.want) {
				t.Errorf("Lease: %v, want %v", err, tt.want)
			}
			if tt.want == nil && (l.Name != "key" || l.Version != "s3cr3t-value-0123") {
				t.Errorf("lease %+v", l)
			}
			if tt.want != nil && (l != nil || src.count() != reads) {
				t.Errorf("lease %v, source was read: %v", l, src.count() != reads)
			}
		})
	}
	none := credential.New(credential.Options{Sources: map[string]credential.Source{"key": src}})
	if _, err := none.Lease(t.Context(), "key", api); !errors.Is(err, credential.ErrNotBound) {
		t.Errorf("without Bound: %v", err)
	}
}

func version(t *testing.T, b *credential.Broker) string {
	t.Helper()
	l, err := b.Lease(t.Context(), "key", api)
	must.OK(t, err)
	return l.Version
}

func TestLocalSourceChangesAtOnce(t *testing.T) {
	src := &source{err: credential.ErrNoSecret}
	b := broker(map[string]credential.Source{"key": src})
	if _, err := b.Lease(t.Context(), "key", api); !errors.Is(err, credential.ErrNoSecret) {
		t.Fatal(err)
	}
	for _, v := range []string{"one", "two"} {
		src.set(v, nil)
		if got := version(t, b); got != v {
			t.Errorf("version %q, want %q", got, v)
		}
	}
}

func TestRemoteSourceIsCachedAndNeverStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &source{value: "one"}
		b := broker(map[string]credential.Source{"key": remote{src}})
		version(t, b)
		src.set("two", nil)
		time.Sleep(23 * time.Second)
		if got := version(t, b); got != "one" || src.count() != 1 {
			t.Errorf("within four fifths of the TTL: %q after %d reads", got, src.count())
		}
		time.Sleep(time.Hour) // idle
		if got := version(t, b); got != "two" || src.count() != 2 {
			t.Errorf("after the TTL: %q after %d reads", got, src.count())
		}

		src.set("", credential.ErrUnavailable)
		time.Sleep(30 * time.Second)
		for range 100 {
			if l, err := b.Lease(t.Context(), "key", api); !errors.Is(err, credential.ErrUnavailable) {
				t.Fatalf("a stale secret was leased: %v, %v", l, err)
			}
		}
		if src.count() != 3 {
			t.Errorf("a source that is down was asked %d times within a second, want 1", src.count()-2)
		}
		src.set("three", nil)
		time.Sleep(time.Second)
		if got := version(t, b); got != "three" {
			t.Errorf("a second after it is back: %q", got)
		}
	})
}

func TestRenewalIsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &source{value: "one"}
		b := broker(map[string]credential.Source{"key": remote{src}})
		version(t, b)
		src.set("two", nil)
		src.slow(3 * time.Second)
		time.Sleep(24 * time.Second)
		began := time.Now()
		for range 100 {
			if got := version(t, b); got != "one" {
				t.Errorf("while the next version is read: %q", got)
			}
		}
		if time.Since(began) != 0 {
			t.Errorf("leases waited %v for it", time.Since(began))
		}
		time.Sleep(4 * time.Second)
		if got := version(t, b); got != "two" || src.count() != 2 {
			t.Errorf("then %q after %d reads, want two after 2", got, src.count())
		}
	})
}

func TestGrace(t *testing.T) {
	for name, tt := range map[string]struct {
		grace, expires time.Duration
		refused        error
		want           time.Duration // for which it is leased
	}{
		"none":               {0, 0, credential.ErrUnavailable, 30 * time.Second},
		"of a minute":        {time.Minute, 0, credential.ErrUnavailable, 90 * time.Second},
		"past its expiry":    {time.Minute, 40 * time.Second, credential.ErrUnavailable, 40 * time.Second},
		"expiry before TTL":  {time.Minute, 10 * time.Second, credential.ErrUnavailable, 10 * time.Second},
		"the source refuses": {time.Minute, 0, credential.ErrRefused, 25 * time.Second},
		"it has none now":    {time.Minute, 0, credential.ErrNoSecret, 25 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				src := &source{value: "one"}
				if tt.expires > 0 {
					src.expiry = time.Now().Add(tt.expires)
				}
				b := broker(map[string]credential.Source{"key": credential.Lasting{Source: remote{src}, Grace: tt.grace}})
				version(t, b)
				src.set("", tt.refused)
				began := time.Now()
				for {
					if _, err := b.Lease(t.Context(), "key", api); err != nil {
						if !errors.Is(err, tt.refused) && !errors.Is(err, credential.ErrUnavailable) {
							t.Errorf("then %v", err)
						}
						break
					}
					time.Sleep(time.Second)
				}
				if got := time.Since(began); got != tt.want {
					t.Errorf("leased for %v after its source failed, want %v", got, tt.want)
				}
				if asked := src.count(); asked > 20 {
					t.Errorf("asked %d times meanwhile", asked)
				}
				src.set("two", nil)
				src.expire(time.Time{})
				time.Sleep(8 * time.Second)
				if got := version(t, b); got != "two" {
					t.Errorf("when the source is back: %q", got)
				}
			})
		})
	}
}

// A source that hangs must not hold up what can be leased all the same.
func TestGraceAfterIdleness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &source{value: "one"}
		b := broker(map[string]credential.Source{"key": credential.Lasting{Source: remote{src}, Grace: time.Hour}})
		version(t, b)
		time.Sleep(10 * time.Minute)
		src.slow(time.Hour)
		began := time.Now()
		if got := version(t, b); got != "one" || time.Since(began) != 5*time.Second {
			t.Errorf("the first after the TTL: %q after %v, want one after the time of a try", got, time.Since(began))
		}
		for range 100 {
			began := time.Now()
			if got := version(t, b); got != "one" || time.Since(began) != 0 {
				t.Fatalf("a later one: %q after %v", got, time.Since(began))
			}
			time.Sleep(time.Second)
		}
		time.Sleep(5 * time.Second)
	})
}

func TestRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &source{value: "one", delay: time.Second}
		b := broker(map[string]credential.Source{"key": remote{src}})
		version(t, b)
		src.set("two", nil)
		var wg sync.WaitGroup
		var changed atomic.Int64
		for range 1000 {
			wg.Go(func() {
				is, err := b.Refresh(t.Context(), "key", api, "one")
				must.OK(t, err)
				if is {
					changed.Add(1)
				}
			})
		}
		wg.Wait()
		if src.count() != 2 || changed.Load() == 0 || version(t, b) != "two" {
			t.Errorf("1000 refusals of one version: %d reads, %d saw the change, then %q", src.count(), changed.Load(), version(t, b))
		}
		for range 100 { // whatever the sandbox makes the destination say
			if is, err := b.Refresh(t.Context(), "key", api, "two"); is || err != nil {
				t.Error(is, err)
			}
		}
		if src.count() != 2 {
			t.Errorf("asked again within %v", credential.RefreshEvery)
		}
		time.Sleep(credential.RefreshEvery)
		src.set("", credential.ErrUnavailable)
		if is, err := b.Refresh(t.Context(), "key", api, "two"); is || err != nil || version(t, b) != "two" {
			t.Errorf("while the source is away: %v, %v: what was leased before goes on", is, err)
		}
		if _, err := b.Refresh(t.Context(), "unbound", api, "two"); !errors.Is(err, credential.ErrNotBound) {
			t.Errorf("not bound: %v", err)
		}
	})
}

func TestExpiryComesBeforeTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &source{value: "one", expiry: time.Now().Add(10 * time.Second)}
		b := broker(map[string]credential.Source{"key": remote{src}})
		version(t, b)
		time.Sleep(10 * time.Second)
		if _, err := b.Lease(t.Context(), "key", api); !errors.Is(err, credential.ErrUnavailable) {
			t.Errorf("expired: %v", err)
		}
	})
}

func TestOneReadForMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &source{value: "one", delay: time.Second}
		b := broker(map[string]credential.Source{"key": remote{src}})
		// The one that begins the read gives up; the others must not suffer.
		first, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := b.Lease(first, "key", api); !errors.Is(err, context.Canceled) {
				t.Errorf("first: %v", err)
			}
		})
		synctest.Wait()
		cancel()
		for range 50 {
			wg.Go(func() {
				if _, err := b.Lease(t.Context(), "key", api); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if src.count() != 1 {
			t.Errorf("%d reads, want 1", src.count())
		}
	})
}

func TestSlowSourceTimesOut(t *testing.T) {
	for name, wrap := range map[string]func(*source) credential.Source{
		"local":  func(s *source) credential.Source { return s },
		"remote": func(s *source) credential.Source { return remote{s} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := broker(map[string]credential.Source{"key": wrap(&source{value: "one", delay: time.Hour})})
				begin := time.Now()
				_, err := b.Lease(t.Context(), "key", api)
				if took := time.Since(begin); !errors.Is(err, credential.ErrUnavailable) || took != 5*time.Second {
					t.Errorf("%v after %v", err, took)
				}
			})
		})
	}
}

func TestReplace(t *testing.T) {
	b := broker(map[string]credential.Source{"key": remote{&source{value: "one"}}})
	version(t, b)
	b.Replace(map[string]credential.Source{"key": remote{&source{value: "two"}}}, "")
	if got := version(t, b); got != "two" {
		t.Errorf("version %q", got)
	}
	b.Replace(nil, "")
	if _, err := b.Lease(t.Context(), "key", api); !errors.Is(err, credential.ErrUnknown) {
		t.Errorf("after removal: %v", err)
	}
}

// A name may stand for another secret after a reload: what the policy before it
// decided leases nothing.
func TestLeaseOfAnotherPolicy(t *testing.T) {
	b := broker(map[string]credential.Source{"key": &source{value: "one-one-one"}})
	b.Replace(map[string]credential.Source{"key": &source{value: "two-two-two"}}, "second")
	old, current := api, api
	old.Policy, current.Policy = "first", "second"
	if _, err := b.Lease(t.Context(), "key", old); !errors.Is(err, credential.ErrStale) {
		t.Errorf("decided before: got %v, want ErrStale", err)
	}
	if _, err := b.Lease(t.Context(), "key", current); err != nil {
		t.Errorf("decided after: %v", err)
	}
}

func TestContains(t *testing.T) {
	b := broker(map[string]credential.Source{
		"openai": &source{value: "sk-proj-0123456789"},
		"pin":    &source{value: "4711\n"},
		"down":   &source{err: credential.ErrUnavailable},
	})
	for value, want := range map[string]string{
		"sk-proj-0123456789":         "openai",
		" sk-proj-0123456789\n":      "openai",
		"Bearer sk-proj-0123456789":  "openai",
		"c2stcHJvai0wMTIzNDU2Nzg5":   "openai",
		"sk-proj-012345678":          "",
		"4711":                       "pin",
		"47110":                      "",
		"":                           "",
		strings.Repeat("a", 100_000): "",
	} {
		got, found, err := b.Contains(t.Context(), value)
		if got != want || found != (want != "") || err == nil {
			t.Errorf("Contains(%.30q) = %q, %v, %v, want %q", value, got, found, err, want)
		}
	}
}

func TestSecretShowsNothing(t *testing.T) {
	src := fields{"token": "s3cr3t-value-0123"}
	b := broker(map[string]credential.Source{"key": src})
	l, err := b.Lease(t.Context(), "key", api)
	must.OK(t, err)
	must.OK(t, l.Apply(request(t, "https://api.example.com/"), basic("user", "{{ .token }}")))
	m, _ := src.Read(t.Context())
	type hidden struct{ m credential.Material }
	for _, text := range printed(b, l, *l, l.Values(), l.Values()[0], m, &m, hidden{m}, scrub.New([]scrub.Value{{Text: l.Values()[0].Reveal()}})) {
		for _, form := range []string{"s3cr3t", hex.EncodeToString([]byte("s3cr3t")), "czNjcjN0", "user:"} {
			if strings.Contains(strings.ToLower(text), strings.ToLower(form)) {
				t.Errorf("printed: %s", text)
			}
		}
	}
}

func TestEachReadOfARemoteSourceIsTold(t *testing.T) {
	far, near := remote{&source{value: "s3cr3t-value-0123"}}, &source{value: "s3cr3t-value-4567"}
	var told []string
	b := credential.New(credential.Options{
		Sources: map[string]credential.Source{"far": far, "near": near},
		Bound:   func(string, string, uint16) bool { return true },
		OnRead: func(name string, r credential.Reading, err error) {
			told = append(told, fmt.Sprint(name, " ", r.Version, " ", err))
		},
	})
	for range 3 {
		for _, name := range []string{"far", "near"} {
			if _, err := b.Lease(t.Context(), name, api); err != nil {
				t.Fatal(err)
			}
		}
	}
	far.set("", credential.ErrUnavailable)
	b.Replace(map[string]credential.Source{"far": far}, "")
	if _, err := b.Lease(t.Context(), "far", api); !errors.Is(err, credential.ErrUnavailable) {
		t.Errorf("lease of a source that is away: %v", err)
	}
	want := []string{"far s3cr3t-value-0123 <nil>", "far  " + credential.ErrUnavailable.Error()}
	if !slices.Equal(told, want) {
		t.Errorf("told %q, want %q: a source that is cached is read once, and one in memory is not told", told, want)
	}
}
