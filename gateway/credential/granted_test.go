package credential_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/gateway/credential"
	"sallyport/internal/test/must"
)

// The login of a registry goes to that registry, as its two fields or as a token, and
// prints as nothing.
func TestRegistryLogin(t *testing.T) {
	const value = "a-password-of-some-length"
	for _, tt := range []struct {
		name, registry string
		fields         map[string]string
		want           error
		shown          [3]string
	}{
		{"both", "registry.example.com", map[string]string{"username": "robot", "password": value}, nil, [3]string{"robot", value, ""}},
		{"a token", "registry.example.com", map[string]string{"token": value}, nil, [3]string{"", "", value}},
		{"both and a token", "registry.example.com", map[string]string{"username": "robot", "password": value, "token": "another-secret"}, nil, [3]string{"robot", value, ""}},
		{"no name", "registry.example.com", map[string]string{"password": value}, credential.ErrNoSecret, [3]string{}},
		{"another registry", "evil.example.com", map[string]string{"token": value}, credential.ErrNotBound, [3]string{}},
		{"another port", "registry.example.com:5000", map[string]string{"token": value}, credential.ErrNotBound, [3]string{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fields := map[string]credential.Secret{}
			for k, v := range tt.fields {
				fields[k] = credential.NewSecret(v)
			}
			source := material(fields)
			b := credential.New(credential.Options{Sources: map[string]credential.Source{
				"key": credential.Login{Source: source, Registries: []string{"registry.example.com"}},
			}})
			l, err := b.RegistryLogin(t.Context(), "key", tt.registry)
			if !errors.Is(err, tt.want) || err != nil && strings.Contains(err.Error(), value) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			if err != nil {
				return
			}
			var got [3]string
			if got[0], got[1], got[2] = l.Reveal(); got != tt.shown {
				t.Errorf("got %q, want %q", got, tt.shown)
			}
			if text := fmt.Sprintf("%v %+v %#v", l, l, *l); strings.Contains(text, value) {
				t.Errorf("it prints as %s", text)
			}
			basic := base64.StdEncoding.EncodeToString([]byte("robot:" + value))
			for _, said := range []string{value, "denied: " + value + "!", base64.StdEncoding.EncodeToString([]byte(value)), "Basic " + basic} {
				if tt.shown[2] != "" && strings.HasPrefix(said, "Basic") {
					continue // was not shown so
				}
				if got := l.Hide(said); strings.Contains(got, said) {
					t.Errorf("%q is not hidden: %q", said, got)
				}
			}
			if got := l.Hide("denied: robot may not"); got != "denied: robot may not" {
				t.Errorf("what holds nothing became %q", got)
			}
		})
	}
}

// A password that is too short for a Scrubber is hidden too.
func TestShortRegistryLogin(t *testing.T) {
	for _, fields := range []material{{"username": credential.NewSecret("robot"), "password": credential.NewSecret("pw-12")}, {"token": credential.NewSecret("pw-12")}} {
		b := credential.New(credential.Options{Sources: map[string]credential.Source{
			"key": credential.Login{Source: fields, Registries: []string{"registry.example.com"}},
		}})
		l, err := b.RegistryLogin(t.Context(), "key", "registry.example.com")
		must.OK(t, err)
		if got := l.Hide("denied: robot with pw-12"); strings.Contains(got, "pw-12") {
			t.Errorf("not hidden: %q", got)
		}
		if got := l.Hide("denied"); got != "denied" {
			t.Errorf("what holds nothing became %q", got)
		}
	}
}

// material is a source of some fields.
type material map[string]credential.Secret

func (m material) Read(context.Context) (credential.Material, error) {
	return credential.Material{Fields: m}, nil
}

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
