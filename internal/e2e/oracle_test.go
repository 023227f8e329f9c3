package e2e

import (
	"cmp"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sallyport/internal/test/must"
)

// oracleRules allow a host that is never sent a credential.
const oracleRules = `egress:
- destination: files.example.test
  upstream: &files {addresses: [198.51.100.10], roots: ca.pem, resolver: "198.51.100.10:53"}
- {destination: "files.example.test:8443", upstream: *files}
`

const (
	wrongGuesses = 3
	fileBlock    = 16 << 10 // what a record of TLS holds at most
)

// guess is how a secret begins, so many characters of it and one more: the right
// one, number 0, or a wrong one.
func guess(secret string, known, number int) string {
	if number == 0 {
		return secret[:known+1]
	}
	wrong := strings.ReplaceAll("~^!?", secret[known:known+1], "")
	return secret[:known] + wrong[number-1:number]
}

// lengths are of how much of a secret is known before the next character is guessed.
func lengths(secret string) []int { return []int{0, 1, 8, len(secret) / 2, len(secret) - 2} }

// guessed is a host whose answers hold guesses of a secret.
func guessed(secret string) http.Handler {
	mux := http.NewServeMux()
	number := func(r *http.Request, name string) int {
		n, _ := strconv.Atoi(r.FormValue(name))
		return n
	}
	// Its body breaks off after a guess.
	mux.HandleFunc("/broken", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("filler. ", 100)+guess(secret, number(r, "known"), number(r, "guess")))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	// A stored file, sent whole: each record but the first and the last ends in a
	// guess, of which the one in this place is right.
	mux.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) {
		file := strings.Repeat("f", fileBlock)
		for place := range 1 + wrongGuesses {
			n := cmp.Or(place, wrongGuesses)
			if place == number(r, "right") {
				n = 0
			}
			g := guess(secret, number(r, "known"), n)
			file += strings.Repeat("f", fileBlock-len(g)) + g
		}
		file += strings.Repeat("f", fileBlock)
		w.Header().Set("Content-Length", fmt.Sprint(len(file)))
		_ = http.NewResponseController(w).Flush()
		_, _ = io.WriteString(w, file)
	})
	// Whole secrets of the right length, of which one is right.
	mux.HandleFunc("/whole", func(w http.ResponseWriter, r *http.Request) {
		last := len(secret) - 1
		_, _ = io.WriteString(w, guess(secret, last, number(r, "guess")))
	})
	return mux
}

// serveRecords serves HTTP/1.1 in records as large as TLS allows, from the first one on.
func (r *rig) serveRecords(port int, handler http.Handler, name string) {
	r.t.Helper()
	leaf, err := r.ca.Leaf(name)
	must.OK(r.t, err)
	l, err := r.host.Listen(port)
	must.OK(r.t, err)
	s := &http.Server{Handler: handler, ErrorLog: log.New(io.Discard, "", 0)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{leaf}, DynamicRecordSizingDisabled: true}))
	}()
	r.t.Cleanup(func() { _ = s.Close(); <-done })
}

// recorder prints, for each target, the answer's status line and how long the TLS
// records were that it came in, the last first, until its body has begun.
const recorder = `
import json, socket, ssl, sys
host, port = sys.argv[1], int(sys.argv[2])
for target in sys.argv[3:]:
    raw = socket.create_connection((host, port), 30)
    come, go = ssl.MemoryBIO(), ssl.MemoryBIO()
    c = ssl.create_default_context().wrap_bio(come, go, server_hostname=host)
    wire, answer = b"", b""
    def step(f):
        global wire
        while True:
            try: return f()
            except ssl.SSLWantReadError:
                raw.sendall(go.read())
                data = raw.recv(65536)
                wire += data
                if data: come.write(data)
                else: come.write_eof()
    step(c.do_handshake)
    c.write(("GET %s HTTP/1.1\r\nHost: %s:%d\r\n\r\n" % (target, host, port)).encode())
    def length():
        head, found, body = answer.partition(b"\r\n\r\n")
        if not found: return None
        return len(head) + 4 + next(int(l[15:]) for l in head.lower().split(b"\r\n") if l.startswith(b"content-length:"))
    while length() is None or len(answer) < length():
        data = step(lambda: c.read(65536))
        if not data: break
        answer += data
    raw.close()
    sizes = []
    while len(wire) >= 5:
        size = int.from_bytes(wire[3:5], "big")
        if wire[0] == 23: sizes.append(size - 17) # one byte of type, 16 of tag
        wire = wire[5 + size:]
    head, _, body = answer.partition(b"\r\n\r\n")
    last = []
    while sum(last) < len(body): last.append(sizes.pop())
    print(json.dumps({"status": head.split(b"\r\n")[0].decode(), "bytes": len(body), "records": last[:-1]}))
`

// Code in a sandbox that chooses bytes of an answer does not learn from what comes
// of it whether they are a part of a secret, neither where a host breaks its body
// off, nor where an honest one gives back a stored file.
func (r *rig) partsTellNothing(t *testing.T) {
	const url = "https://files.example.test"
	if got := r.inside("agent", "curl -s https://api.example.test/body").stdout; !strings.Contains(got, strings.Repeat("*", len(r.key))) {
		t.Fatalf("the secret is not looked for: %q", got)
	}
	for _, version := range []string{"http1.1", "http2"} {
		t.Run("broken off, "+version, func(t *testing.T) {
			defer r.within(t)()
			for _, known := range lengths(r.key) {
				var shell string
				for n := range 1 + wrongGuesses {
					shell += fmt.Sprintf("curl -s --%s -m 60 -o /dev/null -w '%%{http_version} %%{http_code} %%{size_header} %%{size_download} %%{exitcode}\\n' '%s/broken?known=%d&guess=%d'; ",
						version, url, known, n)
				}
				got := strings.Split(strings.TrimSpace(r.inside("agent", shell+"true").stdout), "\n")
				if len(got) != 1+wrongGuesses || !strings.Contains(got[0], " 200 ") || strings.HasSuffix(got[0], " 0") {
					t.Fatalf("answers that break off: %q\n%s", got, r.logged())
				}
				if len(slices.Compact(slices.Clone(got))) != 1 {
					t.Errorf("with %d characters known, version, status, bytes of head and body, and how it ended, the right guess first: %q", known, got)
				}
			}
		})
	}
	t.Run("ends of records", func(t *testing.T) {
		defer r.within(t)()
		for _, known := range lengths(r.key) {
			args := []string{"run", "agent", "--", "python3", "-c", recorder, "files.example.test", "8443"}
			for right := range 2 + wrongGuesses { // at last none is right
				args = append(args, fmt.Sprintf("/file?known=%d&right=%d", known, right))
			}
			var got []string
			for line := range strings.Lines(r.ok(args...)) {
				var answer struct {
					Status  string
					Bytes   int
					Records []int
				}
				if err := json.Unmarshal([]byte(line), &answer); err != nil {
					t.Fatalf("%v: %s", err, line)
				}
				if answer.Status != "HTTP/1.1 200 OK" || answer.Bytes != (3+wrongGuesses)*fileBlock || len(answer.Records) < 2+wrongGuesses {
					t.Fatalf("a stored file: %+v\n%s", answer, r.logged())
				}
				got = append(got, fmt.Sprint(answer.Records))
			}
			if len(got) != 2+wrongGuesses || len(slices.Compact(slices.Clone(got))) != 1 {
				t.Errorf("with %d characters known, how long the last records are, by the right one's place:\n%s", known, strings.Join(got, "\n"))
			}
		}
	})
}

// Whole guesses are told right by asterisks: after five right ones nothing of the
// sandbox leaves, until an operator has looked.
func (r *rig) wholeGuessesStop(t *testing.T) {
	defer r.within(t)()
	const found = "found-credentials"
	asks := func(name, from string, n int) []string {
		out := r.inside(name, fmt.Sprintf("for i in $(seq %d); do curl -s -w ' %%{http_code}\\n' 'https://%s'; done", n, from)).stdout
		answers := strings.SplitN(out, "\n", n)
		if len(answers) != n {
			t.Fatalf("%d answers of %d: %q", len(answers), n, out)
		}
		return answers
	}
	ask := func(name, from string) string { return asks(name, from, 1)[0] }
	right, wrong, keyed := "files.example.test/whole?guess=0", "files.example.test/whole?guess=1", "api.example.test/body"
	hidden := strings.Repeat("*", len(r.key)) + " 200"
	want := func(step, got, part string) {
		t.Helper()
		if !strings.Contains(got, part) {
			t.Fatalf("%s: got %q, want %q in it\n%s", step, got, part, r.logged())
		}
	}
	r.ok("run", "guesser", "--", "true")
	want("the credential's host", ask("guesser", keyed), " 200")
	for _, got := range asks("guesser", wrong, 10) {
		want("a wrong guess", got, r.key[:len(r.key)-1])
	}
	r.ok("sandbox", "fork", "guesser", "heir")
	want("the credential's host, for a fork", ask("heir", keyed), " 200")
	for _, name := range []string{"heir", "guesser"} { // which have one counter
		for n, got := range asks(name, right, 5) {
			want(fmt.Sprintf("right guess %d of %s", n+1, name), got, hidden)
		}
		for _, to := range []string{keyed, wrong} {
			got := ask(name, to)
			want("after five right guesses", got, " 403")
			want("after five right guesses", got, "sallyport limits reset "+found)
		}
		for _, kin := range []string{"heir", "guesser"} {
			want("a sandbox of one lineage, "+kin, ask(kin, wrong), " 403")
		}
		want("another sandbox", ask("agent", wrong), " 200")
		if out := r.ok("limits"); !strings.Contains(out, found) || !strings.Contains(out, "guesser") {
			t.Errorf("the limits: %s", out)
		}
		const says = "a host that it was never sent to answered with it"
		all := func() string { return r.ok("audit", "query", "--sandbox", name, "-o", "json") }
		r.await("the findings", func() bool { return strings.Count(all(), says) >= 5 })
		high := 0
		for line := range strings.Lines(all()) {
			if strings.Contains(line, says) {
				high++
				if !strings.Contains(line, `"severity_id":4`) || !strings.Contains(line, `"found_credentials":[{"name":"key"`) {
					t.Errorf("a finding: %s", line)
				}
			}
		}
		if high != 5 {
			t.Errorf("%d findings in the audit log, want 5", high)
		}
		if out := r.ok("limits", "reset", found, "--subject", name); out != found+": 1 reset\n" {
			t.Errorf("resetting: %q", out)
		}
		want("after the reset", ask(name, wrong), " 200")
		want("after the reset", ask(name, keyed), " 200")
	}
}
