package credential_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/gateway/credential"
)

const proxy = "http://proxy.example.com:3128"

// logins is a source of a whole login.
type logins struct{ *source }

func (l logins) Read(ctx context.Context) (credential.Material, error) {
	m, err := l.source.Read(ctx)
	m.Fields = map[string]credential.Secret{"username": credential.NewSecret("someone"), "password": m.Fields["token"]}
	return m, err
}

func (logins) TTL() time.Duration { return 30 * time.Second }

func TestLogin(t *testing.T) {
	src := &source{value: "s3cr3t-value-0123"}
	to := func(s credential.Source) credential.Source {
		return credential.Login{Source: s, Proxies: []string{proxy, "socks5://other.example.com:1080"}}
	}
	b := broker(map[string]credential.Source{
		"corp": to(logins{src}), "half": to(src), "none": to(&source{err: credential.ErrNoSecret}),
		"down": to(&source{err: credential.ErrUnavailable}), "key": src,
	})
	for _, tt := range []struct {
		name, credential, proxy string
		want                    error
	}{
		{"bound", "corp", proxy, nil},
		{"bound to another too", "corp", "socks5://other.example.com:1080", nil},
		{"another proxy", "corp", "http://evil.example.com:3128", credential.ErrNotBound},
		{"the same over TLS", "corp", "https://proxy.example.com:3128", credential.ErrNotBound},
		{"a credential of egressAuth rules", "key", proxy, credential.ErrNotBound},
		{"not configured", "nobody", proxy, credential.ErrUnknown},
		{"no username", "half", proxy, credential.ErrNoSecret},
		{"no secret yet", "none", proxy, credential.ErrNoSecret},
		{"unreachable", "down", proxy, credential.ErrUnavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			username, password, err := b.Login(t.Context(), tt.credential, tt.proxy)
			if !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			if err == nil && (username.Reveal() != "someone" || password.Reveal() != "s3cr3t-value-0123") {
				t.Error("another login")
			}
			if err != nil && (username.Reveal() != "" || password.Reveal() != "") {
				t.Error("a login beside an error")
			}
			if text := fmt.Sprint(username, password, err); strings.Contains(text, "s3cr3t") || strings.Contains(text, "someone") {
				t.Errorf("printed: %s", text)
			}
		})
	}
	if _, err := b.Lease(t.Context(), "corp", api); err != nil {
		t.Errorf("a login that an egressAuth rule binds too: %v", err)
	}
}

// A login of a Remote source is cached like any of its secrets, and a reload
// binds it anew.
func TestLoginIsCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &source{value: "one"}
		b := broker(map[string]credential.Source{"corp": credential.Login{Source: logins{src}, Proxies: []string{proxy}}})
		for range 3 {
			if _, _, err := b.Login(t.Context(), "corp", proxy); err != nil {
				t.Fatal(err)
			}
		}
		if src.count() != 1 {
			t.Errorf("%d reads, want 1", src.count())
		}
		b.Replace(map[string]credential.Source{"corp": logins{src}}, "")
		if _, _, err := b.Login(t.Context(), "corp", proxy); !errors.Is(err, credential.ErrNotBound) {
			t.Errorf("after a reload without the proxy: %v", err)
		}
	})
}
