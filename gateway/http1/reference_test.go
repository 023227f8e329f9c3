package http1_test

import (
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// asked is one request of a stream.
type asked struct {
	Method, Target, Version string
	Header                  http.Header // but for Host and what frames the body
	Body                    string
	Trailer                 http.Header // but for names without a value
	Whole                   bool        // the body ended as it should
}

// A second reading of RFC 9112, for the sake of being another one: by regular
// expression, over a stream that is there as a whole.
var (
	requestLine = regexp.MustCompile("^([!#$%&'*+\\-.^_`|~0-9A-Za-z]+) ([^ \t#]+) HTTP/1\\.([01])$")
	fieldLine   = regexp.MustCompile("^([!#$%&'*+\\-.^_`|~0-9A-Za-z]+):(.*)$")
	plainNumber = regexp.MustCompile("^(0|[1-9][0-9]*)$")
	chunkLine   = regexp.MustCompile("^([0-9A-Fa-f]{1,15})(;.*)?$")
	noText      = regexp.MustCompile("[\x00-\x08\x0a-\x1f\x7f]")
)

// reference reads the requests of a stream, as far as they have one reading.
// whole says that nothing is left, or a head that has only begun.
func reference(s string) (all []asked, refused bool) {
	for s != "" {
		head, rest, found := strings.Cut(s, "\r\n\r\n")
		if !found {
			// It will be refused if it is wrong already.
			return all, false
		}
		a, keep, frame := referenceHead(head)
		if a == nil {
			return all, true
		}
		if frame < 0 {
			a.Body, a.Trailer, s, a.Whole = referenceChunks(rest)
		} else {
			n := min(frame, int64(len(rest)))
			a.Body, s, a.Whole = rest[:n], rest[n:], n == frame
		}
		all = append(all, *a)
		if !keep || !a.Whole {
			return all, false
		}
	}
	return all, false
}

// referenceHead reads a head. frame is the length of what follows, or -1 for
// chunks.
func referenceHead(head string) (a *asked, keep bool, frame int64) {
	lines := strings.Split(head, "\r\n")
	m := requestLine.FindStringSubmatch(lines[0])
	if m == nil || len(lines) > 1001 || noText.MatchString(strings.Join(lines, "")) || strings.Contains(lines[0], "#") {
		return nil, false, 0
	}
	a = &asked{Method: m[1], Target: m[2], Version: "HTTP/1." + m[3], Header: http.Header{}}
	all := http.Header{}
	for _, l := range lines[1:] {
		f := fieldLine.FindStringSubmatch(l)
		if f == nil {
			return nil, false, 0
		}
		name := http.CanonicalHeaderKey(f[1])
		all[name] = append(all[name], strings.Trim(f[2], " \t"))
	}
	old, tunnel := m[3] == "0", a.Method == "CONNECT"
	hosts, lengths, codings := all["Host"], all["Content-Length"], all["Transfer-Encoding"]
	for _, e := range all["Expect"] {
		if !strings.EqualFold(e, "100-continue") || len(e) != len("100-continue") {
			return nil, false, 0
		}
	}
	switch {
	case len(hosts) > 1, len(hosts) == 0 && !old && !tunnel:
		return nil, false, 0
	case len(lengths)+len(codings) > 1, len(codings) > 0 && (old || tunnel):
		return nil, false, 0
	}
	for _, l := range lengths {
		n, err := strconv.ParseInt(l, 10, 64)
		if !plainNumber.MatchString(l) || err != nil || tunnel && n > 0 {
			return nil, false, 0
		}
		frame = n
	}
	for _, c := range codings {
		if !regexp.MustCompile("^(?i:chunked)$").MatchString(c) || len(c) != len("chunked") {
			return nil, false, 0
		}
		frame = -1
	}
	if frame < 0 {
		for name := range elements(all["Trailer"]) {
			if name == "Content-Length" || name == "Transfer-Encoding" || name == "Trailer" {
				return nil, false, 0
			}
		}
		delete(all, "Trailer")
	}
	if !validTarget(a, hosts) {
		return nil, false, 0
	}
	closes, keeps := elements(all["Connection"])["Close"], elements(all["Connection"])["Keep-Alive"]
	delete(all, "Host")
	delete(all, "Transfer-Encoding")
	if p := all["Pragma"]; len(p) > 0 && p[0] == "no-cache" && all["Cache-Control"] == nil {
		all["Cache-Control"] = []string{"no-cache"} // net/http's reading of HTTP/1.0
	}
	a.Header = all
	return a, !closes && (!old || keeps), frame
}

// validTarget leaves what is in a URL to its parser: it frames nothing.
func validTarget(a *asked, hosts []string) bool {
	if a.Method == "CONNECT" {
		u, err := url.ParseRequestURI("http://" + a.Target)
		return err == nil && u.Host == a.Target && !strings.HasPrefix(a.Target, "/")
	}
	u, err := url.ParseRequestURI(a.Target)
	if err != nil || u.Opaque != "" {
		return false
	}
	if u.Scheme == "" {
		return true
	}
	alike := func(host string) string {
		host = strings.ToLower(host)
		if port := map[string]string{"http": ":80", "https": ":443"}[u.Scheme]; port != "" && !strings.HasSuffix(host, "]") {
			host = strings.TrimSuffix(host, port)
		}
		return regexp.MustCompile(`\.(:[^:\]]*)?$`).ReplaceAllString(host, "$1")
	}
	return u.Hostname() != "" && (len(hosts) == 0 || alike(hosts[0]) == alike(u.Host))
}

// elements are the names in lists.
func elements(lines []string) map[string]bool {
	all := map[string]bool{}
	for _, l := range lines {
		for e := range strings.SplitSeq(l, ",") {
			all[http.CanonicalHeaderKey(strings.Trim(e, " \t"))] = true
		}
	}
	return all
}

func referenceChunks(s string) (body string, trailer http.Header, rest string, whole bool) {
	line := func() (string, bool) {
		l, after, ok := strings.Cut(s, "\r\n")
		if !ok || noText.MatchString(l) || len(l) > 1024 {
			return "", false
		}
		s = after
		return l, true
	}
	var waste int64
	for {
		l, ok := line()
		m := chunkLine.FindStringSubmatch(l)
		if !ok || m == nil {
			return body, nil, s, false
		}
		size, _ := strconv.ParseInt(m[1], 16, 64)
		if waste = max(waste+int64(len(l))-16-2*min(size, 1<<20), 0); waste > 16<<10 {
			return body, nil, s, false
		}
		if size == 0 {
			break
		}
		n := min(size, int64(len(s)))
		body, s = body+s[:n], s[n:]
		if l, ok := line(); !ok || l != "" || n < size {
			return body, nil, s, false
		}
	}
	trailer = http.Header{}
	for total := 0; ; {
		l, ok := line()
		if !ok {
			return body, nil, s, false
		}
		if l == "" {
			break
		}
		f := fieldLine.FindStringSubmatch(l)
		if total += len(l); f == nil || total > 4096 {
			return body, nil, s, false
		}
		name := http.CanonicalHeaderKey(f[1])
		if name == "Host" || name == "Content-Length" || name == "Transfer-Encoding" || name == "Trailer" {
			return body, nil, s, false
		}
		trailer[name] = append(trailer[name], strings.Trim(f[2], " \t"))
	}
	maps.DeleteFunc(trailer, func(_ string, v []string) bool { return len(v) == 0 })
	return body, trailer, s, true
}
