package inbound

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"sallyport/gateway/access"
	"sallyport/gateway/form"
)

// exposureCookie is the cookie that a browser has of a published port, and
// exposureHeader what a program may send in place of Authorization.
const (
	exposureCookie = "sallyport-exposure"
	exposureHeader = "Sallyport-Token"
)

// shownTokens are the tokens that a request came with, by where it had them. A text that
// looks like one is never passed on, whether it is good or not.
type shownTokens struct {
	header, cookie, query []string
}

// isToken tells whether s has the form of a port's token.
func isToken(s string) bool {
	return len(s) == access.PortToken && strings.HasPrefix(s, access.Mark)
}

// takeTokens removes from a request all that is ours, and returns it. An
// Authorization of another form is the application's own, as other cookies are.
func takeTokens(r *http.Request) (t shownTokens) {
	for _, v := range r.Header[exposureHeader] {
		t.header = append(t.header, strings.TrimSpace(v))
	}
	form.DropReserved(r.Header)
	form.DropReserved(r.Trailer)
	kept := slices.DeleteFunc(r.Header["Authorization"], func(v string) bool {
		scheme, token, _ := strings.Cut(v, " ")
		token = strings.TrimSpace(token)
		if !strings.EqualFold(scheme, "Bearer") || !strings.HasPrefix(token, access.Mark) {
			return false
		}
		t.header = append(t.header, token)
		return true
	})
	if len(kept) == 0 {
		delete(r.Header, "Authorization")
	} else {
		r.Header["Authorization"] = kept
	}
	var lines []string
	for _, line := range r.Header["Cookie"] {
		var pairs []string
		for pair := range strings.SplitSeq(line, ";") {
			pair = strings.TrimSpace(pair)
			name, value, _ := strings.Cut(pair, "=")
			name, value = strings.TrimSpace(name), strings.TrimSpace(value)
			switch {
			case name == exposureCookie:
				t.cookie = append(t.cookie, value)
			case name == "", strings.EqualFold(name, exposureCookie), strings.Contains(pair, exposureCookie+"="), isToken(strings.Trim(value, `"`)), isToken(name):
				// Without a name, or ours to a reader who is less exact.
			default:
				pairs = append(pairs, pair)
			}
		}
		if pairs != nil {
			lines = append(lines, strings.Join(pairs, "; "))
		}
	}
	delete(r.Header, "Cookie")
	if lines != nil {
		r.Header["Cookie"] = lines
	}
	var query []string
	for part := range strings.SplitSeq(r.URL.RawQuery, "&") {
		name, value, _ := strings.Cut(part, "=")
		plain, err := url.QueryUnescape(value)
		if err == nil && isToken(plain) {
			if name, err = url.QueryUnescape(name); err == nil && name == "token" {
				t.query = append(t.query, plain)
			}
			continue // under any name, and any spelling
		}
		query = append(query, part)
	}
	r.URL.RawQuery = strings.Join(query, "&")
	return t
}

func (t shownTokens) any() bool { return len(t.header)+len(t.cookie)+len(t.query) > 0 }

// setCookie gives a browser that came with the token in its URL the cookie in place
// of it, and sends it to the same URL without. Location is in full: a path that
// begins with // would name another host.
func setCookie(w http.ResponseWriter, r *http.Request, p access.Port, token, authority string) {
	to := "http://" + authority + r.URL.EscapedPath()
	if r.URL.RawQuery != "" {
		to += "?" + r.URL.RawQuery
	}
	h := w.Header()
	// No Domain: for this very host. Its ports cannot be told apart, but each host
	// has one published port. A name below localhost is a site of its own, so that Strict
	// keeps pages of other ports from using it.
	h.Set("Set-Cookie", (&http.Cookie{
		Name: exposureCookie, Value: token, Path: "/", MaxAge: max(1, int(time.Until(p.Expires).Seconds())),
		HttpOnly: true, SameSite: http.SameSiteStrictMode,
	}).String())
	h.Set("Location", to)
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	w.WriteHeader(http.StatusSeeOther)
}

// cleanResponse takes from an answer of a sandbox what is not its to say: cookies for other
// hosts than its own, our cookie, and what speaks in our name.
func cleanResponse(h http.Header, upgrade bool) {
	form.DropHops(h, upgrade)
	form.DropReserved(h)
	delete(h, "Alt-Svc")
	delete(h, "Trailer")
	var kept []string
	for _, line := range h["Set-Cookie"] {
		if line = hostOnly(line); line != "" {
			kept = append(kept, line)
		}
	}
	delete(h, "Set-Cookie")
	if kept != nil {
		h["Set-Cookie"] = kept
	}
}

// hostOnly is a Set-Cookie without Domain (RFC 6265, section 5.2.3): none for our
// own cookie, which a page could have replaced, nor for one without a name, of which
// browsers send the value alone, as if it were name and value of another.
func hostOnly(line string) string {
	parts := strings.Split(line, ";")
	name, _, named := strings.Cut(parts[0], "=")
	name = strings.TrimSpace(name)
	if name == "" || !named || strings.EqualFold(name, exposureCookie) {
		return ""
	}
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool {
		attribute, _, _ := strings.Cut(part, "=")
		return strings.EqualFold(strings.TrimSpace(attribute), "Domain")
	}), ";")
}
