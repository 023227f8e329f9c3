package e2e

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

// echoes are ways in which an upstream can send back what it was sent.
var echoes = map[string]func(http.ResponseWriter, string){
	"body":        func(w http.ResponseWriter, key string) { _, _ = io.WriteString(w, "you sent "+key+".") },
	"header":      func(w http.ResponseWriter, key string) { w.Header().Set("X-You-Sent", key) },
	"cookie":      func(w http.ResponseWriter, key string) { w.Header().Add("Set-Cookie", "sent="+url.QueryEscape(key)) },
	"location":    func(w http.ResponseWriter, key string) { redirect(w, "/?sent="+url.QueryEscape(key)) },
	"json":        func(w http.ResponseWriter, key string) { _ = json.NewEncoder(w).Encode(map[string]string{"sent": key}) },
	"base64":      coded(base64.StdEncoding.EncodeToString),
	"base64url":   coded(base64.URLEncoding.EncodeToString),
	"hexadecimal": coded(hex.EncodeToString),
	"HEXADECIMAL": coded(func(b []byte) string { return strings.ToUpper(hex.EncodeToString(b)) }),
	"query":       coded(func(b []byte) string { return url.QueryEscape(string(b)) }),
	"path":        coded(func(b []byte) string { return url.PathEscape(string(b)) }),
	// One byte at a time, so that no read holds all of it.
	"drop by drop": func(w http.ResponseWriter, key string) {
		for _, c := range []byte(key) {
			_, _ = w.Write([]byte{c})
			_ = http.NewResponseController(w).Flush()
			time.Sleep(time.Millisecond)
		}
	},
	"across reads": func(w http.ResponseWriter, key string) {
		_, _ = io.WriteString(w, strings.Repeat("-", 32<<10-len(key)/2)+key)
	},
	"trailer": func(w http.ResponseWriter, key string) {
		w.Header().Set("Trailer", "X-You-Sent")
		_, _ = io.WriteString(w, "see below")
		w.Header().Set("X-You-Sent", key)
	},
	"early hint": func(w http.ResponseWriter, key string) {
		w.Header().Set("Link", "<"+key+">")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		_, _ = io.WriteString(w, "done")
	},
	"packed unasked": func(w http.ResponseWriter, key string) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, key)
		_ = z.Close()
	},
	"header name": func(w http.ResponseWriter, key string) {
		w.Header().Set("X-"+hex.EncodeToString([]byte(key)), "1")
	},
	"reason phrase": func(w http.ResponseWriter, key string) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 200 " + key + "\r\nContent-Length: 0\r\n\r\n")
		_ = rw.Flush()
	},
}

func coded(encode func([]byte) string) func(http.ResponseWriter, string) {
	return func(w http.ResponseWriter, key string) {
		for skip := range 3 {
			_, _ = io.WriteString(w, encode([]byte(strings.Repeat("x", skip)+key+"yz"))+"\n")
		}
	}
}

func redirect(w http.ResponseWriter, to string) {
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusFound)
}

// An upstream that sends the credential back in any form does not give it to
// the sandbox, nor does another tell it a part.
func TestEchoIsScrubbed(t *testing.T) {
	r := newRig(t, "")
	rules := strings.Replace(ruleConfig, "authRef: key\n", "authRef: key\n  inherit: true\n", 1)
	r.configure(baseConfig, strings.Replace(rules, "egress:\n", oracleRules, 1))
	r.key = "sk+e2e/" + rand.Text() + "/%=&~+=="
	h := newHunt(map[string]string{"the secret": r.key})

	mux := http.NewServeMux()
	for name, echo := range echoes {
		mux.HandleFunc("/"+strings.ReplaceAll(name, " ", "-"), func(w http.ResponseWriter, req *http.Request) {
			sent, ok := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer ")
			if !ok || sent != r.key {
				http.Error(w, "no key came", http.StatusUnauthorized)
				return
			}
			echo(w, sent)
		})
	}
	files := guessed(r.key)
	r.serveSites(hostMux{"files.example.test": files, "api.example.test": mux})
	r.serveRecords(8443, files, "files.example.test")
	r.up()
	r.setKey()
	r.ok("run", "agent", "--", "true")
	for name := range echoes {
		t.Run(name, func(t *testing.T) {
			defer r.within(t)()
			path := "/" + strings.ReplaceAll(name, " ", "-")
			// The control: past the gateway, it does come back.
			direct, err := tls.Dial("tcp", upstreamAddress+":443", &tls.Config{RootCAs: r.ca.Pool(), ServerName: "api.example.test"})
			must.OK(t, err)
			fmt.Fprintf(direct, "GET %s HTTP/1.1\r\nHost: api.example.test\r\nConnection: close\r\nAuthorization: Bearer %s\r\n\r\n", path, r.key)
			echoed, _ := io.ReadAll(direct) // up to its end, however that is said
			_ = direct.Close()
			if len(h.in(echoed)) == 0 {
				t.Fatalf("the upstream echoes nothing: %q", echoed)
			}
			hows, between := []string{"", "--http1.0 --no-alpn ", "-H 'Accept-Encoding: gzip' ", "-r 3- "}, "\n-- "+rand.Text()+"\n"
			var shell string
			for _, how := range hows {
				shell += "curl -sS -i -m 60 " + how + "https://api.example.test" + path + " 2>&1; printf %s '" + between + "'; "
			}
			res := r.inside("agent", shell)
			answers := strings.Split(res.stdout, between)
			if len(answers) != len(hows)+1 {
				t.Fatalf("%d answers: %s", len(answers)-1, res)
			}
			for i, how := range hows {
				answer := answers[i]
				if found := h.in([]byte(answer)); len(found) > 0 {
					t.Errorf("curl %s: %v\n%s", how, found, answer)
				}
				if strings.Contains(answer, " 401 ") || !strings.Contains(answer, "HTTP/1.") && !strings.Contains(answer, "HTTP/2 ") {
					t.Errorf("curl %s: got %s, want an answer to a request with the key", how, answer)
				}
			}
		})
	}
	t.Run("parts", r.partsTellNothing)
	t.Run("whole guesses", r.wholeGuessesStop)
}

// in lists what is found in HTTP messages: in their bytes, in what follows a
// head, and in the body that chunks make.
func (h *hunt) in(messages []byte) []string {
	q := h.begin()
	_ = q.read("messages", bytes.NewReader(messages))
	if _, body, ok := bytes.Cut(messages, []byte("\r\n\r\n")); ok {
		_ = q.read("body", bytes.NewReader(body))
	}
	for r := bufio.NewReader(bytes.NewReader(messages)); ; {
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return q.of("the secret")
		}
		_ = q.read("body", resp.Body)
	}
}
