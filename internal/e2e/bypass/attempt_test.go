package bypass

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
)

// attempt is one way around, and what must come of it.
type attempt struct {
	name string
	sent visit
	// want is what comes back, in order: a status for each answer of HTTP/1.1 and
	// for each stream of HTTP/2; "reset" and "goaway"; "closed" where nothing is
	// answered after what came before it; "no connection", "no handshake",
	// "silence". Where two things are right, " | " stands between them, here and
	// in log.
	want string
	// log is what the log says: "deny RULE", "allow RULE", or "block" for what was
	// allowed and led where nothing may. Nothing where no request came of it.
	log string
	// saw is what the upstream saw: "METHOD host target credential", and more where
	// there is more. Nothing means no connection and no look-up either.
	saw []string
	// broken allows the upstream to see the request broken off, or not at all.
	broken bool
	// late allows a request broken off besides, of the attempt before.
	late bool
	// looked allows look-ups: whether the name leads where it may is not known
	// before that.
	looked bool
	// legal is the same in a legal form, with what the upstream saw of it; by
	// default a GET. It is answered with 200 unless legalWant says otherwise.
	legal     visit
	legalSaw  string
	legalWant string
}

// visit is what a sandbox does on one connection.
type visit struct {
	to    string // host:port; default: api.example.test:443
	plain bool   // without TLS
	tls   *Handshake
	speak Speech
	steps []Step
	limit time.Duration
	// before is said to a proxy, which is connected to instead: to is what it is
	// asked for.
	before string
}

// ask sends requests of HTTP/1.1 at once. There are as many answers as the
// case wants.
func ask(requests ...string) visit {
	return visit{speak: HTTP1, steps: []Step{{Send: [][]byte{[]byte(strings.Join(requests, ""))}}}}
}

// at is the same at another host or port, with its name in SNI.
func (v visit) at(to string) visit { v.to = to; return v }

// bare is the same without TLS.
func (v visit) bare() visit { v.plain = true; return v }

// with is the same with another handshake.
func (v visit) with(h Handshake) visit { v.tls = &h; return v }

// get is a plain request as clients send it.
func get(host, target string, headers ...string) string {
	return request("GET", host, target, "", headers...)
}

// request has a Content-Length when it has a body.
func request(method, host, target, body string, headers ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", method, target, host)
	for _, h := range headers {
		b.WriteString(h + "\r\n")
	}
	if body != "" {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(body))
	}
	return b.String() + "\r\n" + body
}

// legal is what passes wherever a case does not say otherwise.
var legal, legalSaw = ask(get(api, "/v1/legal")), "GET api.example.test /v1/legal ours"

// job is the visit as the probe is told, for as many answers as are wanted.
func (v visit) job(want string) Job {
	j := Job{Network: "tcp", Address: v.to, TLS: v.tls, Speak: v.speak, Limit: v.limit}
	if j.Address == "" {
		j.Address = api + ":443"
	}
	if j.TLS == nil && !v.plain {
		name := j.Address[:strings.LastIndexByte(j.Address, ':')]
		j.TLS = &Handshake{Name: name, ALPN: []string{"http/1.1"}}
		if v.speak == HTTP2 {
			j.TLS.ALPN = []string{"h2"}
		}
	}
	ends := 0
	want, _, _ = strings.Cut(want, " | ")
	for _, w := range strings.Fields(want) {
		switch {
		case w == "closed", w == "goaway":
			j.UntilClosed = true
		case w == "reset", w == "hello", len(w) == 3:
			ends++
		}
	}
	if v.before != "" {
		j.Address, j.Before = proxyAddress, []byte(v.before)
	}
	j.Steps = slices.Clone(v.steps)
	if last := len(j.Steps) - 1; last >= 0 && j.Steps[last].Ends == 0 {
		for _, s := range j.Steps[:last] {
			ends -= s.Ends
		}
		j.Steps[last].Ends = ends
	}
	return j
}

// run makes the attempt, and then the legal one.
func (a attempt) run(t *testing.T, s *sandbox) {
	t.Helper()
	s.try(t, a)
	l := attempt{sent: a.legal, want: cmp.Or(a.legalWant, "200"), saw: []string{a.legalSaw}, late: a.broken}
	if len(l.sent.steps) == 0 {
		l.sent, l.saw = legal, []string{legalSaw}
	}
	switch host := strings.Fields(l.saw[0])[1]; host {
	case api:
		l.log = "allow api"
	case other:
		l.log = "allow other"
	case rawHost:
		l.log = "tunnel raw"
	case other8080:
		l.log = "allow odd"
	case pinned:
		l.log = "tunnel pinned"
	case idn:
		l.log = "allow idn"
	default:
		l.log = "allow rebound"
	}
	t.Run("legal", func(t *testing.T) { s.try(t, l) })
}

// try holds what comes of an attempt against what must.
func (s *sandbox) try(t *testing.T, a attempt) Result {
	t.Helper()
	u := s.rig.upstream
	if late := s.events(t); len(late) > 0 {
		t.Errorf("before this, the log said more than was awaited: %s", said(late))
	}
	u.take()
	before := u.contacts(t)

	r := s.do(t, a.sent.job(a.want))
	got, text := outcome(a.sent.speak, r, strings.Contains(a.want, "closed"))
	if !among(got, a.want) {
		t.Errorf("the sandbox got %q, want %q\nstage %q, error %q, after %v\n%.2000s", got, a.want, r.Stage, r.Error, r.Took, text)
	}
	if leak := s.rig.leaked(text); leak != "" {
		t.Errorf("the sandbox was given the credential, %s:\n%s", leak, text)
	}
	s.logged(t, a.log)
	saw := u.take()
	if a.late {
		saw = slices.DeleteFunc(saw, func(s string) bool { return strings.HasSuffix(s, " broken") })
	}
	if a.broken && len(saw) <= 1 && (len(saw) == 0 || strings.HasSuffix(saw[0], " broken")) {
		return r
	}
	if diff := gocmp.Diff(a.saw, saw); diff != "" {
		t.Errorf("the upstream saw (-want +got):\n%s", diff)
	}
	if after := u.contacts(t); after > before && len(a.saw) == 0 {
		for _, f := range u.opened.Seen()[before:after] {
			if !a.looked || f.To.Port() != 53 {
				t.Errorf("this reached the upstream: %v", f)
			}
		}
	}
	return r
}

func among(got, want string) bool { return slices.Contains(strings.Split(want, " | "), got) }

// logged waits for the log to say what it must.
func (s *sandbox) logged(t *testing.T, want string) {
	t.Helper()
	events := s.events(t)
	for deadline := time.Now().Add(time.Minute); !among(said(events), want) && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
		events = append(events, s.events(t)...)
	}
	if got := said(events); !among(got, want) {
		t.Errorf("the log says %q, want %q", got, want)
		for _, e := range events {
			t.Logf("%s: %s %s", e.ID(), e.Unmapped.Sallyport.Reason, e.Detail)
		}
	}
}

// leaked says in which form the credential is in text.
func (r *rig) leaked(text string) string {
	forms := map[string]string{"as it is": r.key, "in hexadecimal": hex.EncodeToString([]byte(r.key))}
	for skip := range 3 {
		e := base64.RawStdEncoding.EncodeToString([]byte(strings.Repeat("x", skip) + r.key))
		forms["in base64"+strings.Repeat("'", skip)] = e[2*skip : len(e)-2]
	}
	for how, form := range forms {
		if strings.Contains(strings.ToLower(text), strings.ToLower(form)) {
			return how
		}
	}
	return ""
}

// outcome says what a Result is in the words of attempt.want, and all of its
// text in the clear.
func outcome(speak Speech, r Result, ended bool) (got, text string) {
	switch r.Stage {
	case "dial":
		return "no connection", r.Error
	case "handshake":
		return "no handshake", r.Error
	}
	var all []string
	switch speak {
	case HTTP1:
		all, text = responses(r.Data)
	case HTTP2:
		all, text = streams(r.Data)
	default:
		all, text = []string{first(r.Data)}, string(r.Data)
	}
	all = slices.DeleteFunc(all, func(s string) bool { return s == "" })
	if r.Closed && (ended || len(all) == 0) {
		all = append(all, "closed")
	}
	if len(all) == 0 {
		all = []string{"silence"}
	}
	return strings.Join(all, " "), text
}

// first names what raw bytes begin with.
func first(data []byte) string {
	switch {
	case len(data) == 0:
		return ""
	case data[0] == 22:
		return "hello"
	case data[0] == 21 && len(data) > 6:
		return "alert"
	case bytes.HasPrefix(data, []byte("HTTP/1.1 ")) && len(data) > 12:
		return string(data[9:12])
	}
	return fmt.Sprintf("%.16q", data)
}
