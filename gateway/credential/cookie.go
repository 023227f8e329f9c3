package credential

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"sallyport/policy"
)

// cookieKind gives a credential in a cookie (RFC 6265).
type cookieKind policy.CookieInject

func (k cookieKind) compose(fields map[string]Secret) (*composed, error) {
	if !policy.IsToken(k.Name) {
		return nil, fmt.Errorf("inject.cookie.name %q is not the name of a cookie", k.Name)
	}
	value, used, err := execute(k.Value, fields)
	if err != nil {
		return nil, fmt.Errorf("inject.cookie.value: %w", err)
	}
	if err := headerSafe(value); err != nil {
		return nil, err
	}
	if strings.ContainsFunc(value, func(c rune) bool { return c <= ' ' || c >= 0x7f || strings.ContainsRune(`",;\`, c) }) {
		return nil, errors.New(`the secret has a character in it that a cookie cannot hold (a space, a comma, a semicolon, a quote or a backslash); set it in the encoding that the service expects`)
	}
	pair := NewSecret(k.Name + "=" + value)
	return constant(func(r *http.Request) {
		setHeader(r, "Cookie", strings.Join(append(k.others(r), pair.Reveal()), "; "))
	}, NewSecret(value), pair).keeps(used, fields), nil
}

func (k cookieKind) own(r *http.Request) bool { return len(k.others(r)) < len(cookies(r)) }

// others are the request's cookies of other names, as they are written.
func (k cookieKind) others(r *http.Request) []string {
	var kept []string
	for _, pair := range cookies(r) {
		if name, _, _ := strings.Cut(pair, "="); !strings.EqualFold(strings.TrimSpace(name), k.Name) {
			kept = append(kept, pair)
		}
	}
	return kept
}

func cookies(r *http.Request) (pairs []string) {
	for name, values := range r.Header {
		if fold(name) != "cookie" {
			continue
		}
		for pair := range strings.SplitSeq(strings.Join(values, ";"), ";") {
			if pair = strings.TrimSpace(pair); pair != "" {
				pairs = append(pairs, pair)
			}
		}
	}
	return pairs
}
