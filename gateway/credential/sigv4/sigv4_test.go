package sigv4

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"sallyport/internal/test/must"
)

// vectors are the cases of AWS's test suite: the files of each by their names.
func vectors(t *testing.T, file string) map[string]map[string]string {
	t.Helper()
	text, err := os.ReadFile(file)
	must.OK(t, err)
	all := map[string]map[string]string{}
	marks := regexp.MustCompile(`(?m)^-- ([^/]+)/(\S+) --\n`)
	for _, at := range marks.FindAllStringSubmatchIndex(string(text), -1) {
		name, part, body := string(text[at[2]:at[3]]), string(text[at[4]:at[5]]), string(text[at[1]:])
		if next := marks.FindStringIndex(body); next != nil {
			body = body[:next[0]]
		}
		if all[name] == nil {
			all[name] = map[string]string{}
		}
		all[name][part] = strings.TrimSuffix(body, "\n")
	}
	return all
}

// read reads a request of the suite, whose targets are not encoded.
func read(text string) *http.Request {
	head, body, _ := strings.Cut(text, "\n\n")
	lines := strings.Split(head, "\n")
	method, rest, _ := strings.Cut(lines[0], " ")
	path, query, _ := strings.Cut(strings.TrimSuffix(rest, " HTTP/1.1"), "?")
	r := &http.Request{Method: method, URL: &url.URL{Opaque: "", Path: path, RawPath: path, RawQuery: query}, Header: http.Header{}, ContentLength: int64(len(body))}
	name := ""
	for _, line := range lines[1:] {
		value := line
		if line != "" && line[0] != ' ' {
			name, value, _ = strings.Cut(line, ":")
			r.Header.Add(name, "")
		}
		if name == "Host" {
			r.Host = value
		}
		v := r.Header[http.CanonicalHeaderKey(name)]
		v[len(v)-1] += value
	}
	r.Header.Del("Content-Length")
	r.Body = io.NopCloser(strings.NewReader(body))
	return r
}

// The signed text is, byte for byte, that of AWS's test suite.
func TestSuite(t *testing.T) {
	for file, algorithm := range map[string]string{"testdata/v4.txtar": V4, "testdata/v4a.txtar": V4a} {
		tried := 0
		for name, files := range vectors(t, file) {
			var c struct {
				Credentials struct {
					ID     string `json:"access_key_id"`
					Secret string `json:"secret_access_key"`
					Token  string
				}
				Expires   int `json:"expiration_in_seconds"`
				Normalize bool
				Region    string
				Service   string
				SignBody  bool      `json:"sign_body"`
				Time      time.Time `json:"timestamp"`
				Omit      bool      `json:"omit_session_token"`
			}
			must.OK(t, json.Unmarshal([]byte(files["context.json"]), &c))
			if c.Omit || files["header-canonical-request.txt"] == "" {
				continue // a token that is not signed, and two cases without an answer
			}
			for _, query := range []bool{false, true} {
				kind := map[bool]string{false: "header", true: "query"}[query]
				t.Run(strings.Join([]string{algorithm, name, kind}, "/"), func(t *testing.T) {
					r := read(files["request.txt"])
					payload := Empty
					if c.SignBody {
						body, err := io.ReadAll(r.Body)
						must.OK(t, err)
						if payload = hash(body); !query {
							r.Header.Set("X-Amz-Content-Sha256", payload)
						}
					}
					f := Form{Algorithm: algorithm, Service: c.Service, Region: c.Region, Query: query, Expires: c.Expires, Headers: []string{"content-length"}}
					for h := range r.Header {
						f.Headers = append(f.Headers, strings.ToLower(h))
					}
					if !c.Normalize || r.URL.EscapedPath() != r.URL.RawPath {
						// S3 alone does not normalise. Nor does it encode twice, as the suite does not
						// where it has a path that cannot be sent. The scope is the suite's, below.
						f.Service = "s3"
					}
					k := &Keys{ID: c.Credentials.ID, Secret: c.Credentials.Secret, Session: c.Credentials.Token}
					s := k.signer(Form{Algorithm: algorithm, Service: c.Service, Region: c.Region}, c.Time)
					request, _ := k.prepare(r, s, f, payload)
					if want := files[kind+"-canonical-request.txt"]; string(request) != want {
						t.Fatalf("got\n%s\nwant\n%s", request, want)
					}
					signature, err := s.sign(algorithm, hash(request))
					must.OK(t, err)
					if algorithm == V4 {
						if want := files[kind+"-signature.txt"]; signature != want {
							t.Errorf("got %s, want %s", signature, want)
						}
						return
					}
					var public struct{ X, Y string }
					must.OK(t, json.Unmarshal([]byte(files["public-key.json"]), &public))
					verify(t, public.X, public.Y, files[kind+"-string-to-sign.txt"], signature)
				})
				tried++
			}
		}
		if tried < 70 {
			t.Errorf("%s: only %d cases were tried", file, tried)
		}
	}
}

// verify checks a signature with a public key.
func verify(t *testing.T, x, y, text, signature string) {
	t.Helper()
	number := func(s string) *big.Int {
		n, ok := new(big.Int).SetString(s, 16)
		if !ok {
			t.Fatalf("%q is no number", s)
		}
		return n
	}
	raw, err := hex.DecodeString(signature)
	must.OK(t, err)
	sum := sha256.Sum256([]byte(text))
	if !ecdsa.VerifyASN1(&ecdsa.PublicKey{Curve: elliptic.P256(), X: number(x), Y: number(y)}, sum[:], raw) {
		t.Errorf("the signature is not the derived key's, or not of\n%s", text)
	}
}

// example is the request of AWS's documentation for S3 whose body is sent in chunks, with
// the keys that it is signed with. The signatures in these tests are from there, and those
// of trailers from aws-c-auth's tests/test_chunked_signing.c (Apache-2.0).
func example(t *testing.T) (*Keys, *http.Request, Form, time.Time) {
	k := &Keys{ID: "AKIAIOSFODNN7EXAMPLE", Secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}
	r, err := http.NewRequest("PUT", "https://s3.amazonaws.com/examplebucket/chunkObject.txt", nil)
	must.OK(t, err)
	r.ContentLength = 66824
	r.Header.Set("X-Amz-Storage-Class", "REDUCED_REDUNDANCY")
	r.Header.Set("Content-Encoding", "aws-chunked")
	r.Header.Set("X-Amz-Decoded-Content-Length", "66560")
	r.Header.Set("X-Amz-Content-Sha256", Chunked)
	f := Form{Algorithm: V4, Service: "s3", Region: "us-east-1", Headers: []string{"content-encoding", "content-length"}}
	return k, r, f, time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC)
}

const (
	seed    = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
	first   = "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"
	second  = "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"
	last    = "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"
	trailer = "df5735bd9f3295cd9386572292562fefc93ba94e80a0a1ddcbd652c4e0a75e6c"
)

// body is the example's body with some signatures.
func body(one, two, three, end string) string {
	b := "10000;chunk-signature=" + one + "\r\n" + strings.Repeat("a", 65536) + "\r\n" + "400;chunk-signature=" + two + "\r\n" + strings.Repeat("a", 1024) + "\r\n" + "0;chunk-signature=" + three + "\r\n"
	if end == "" {
		return b + "\r\n"
	}
	return b + "first:1st\r\nsecond:2nd\r\nthird:3rd\r\nx-amz-trailer-signature:" + end + "\r\n\r\n"
}

var plenty = func(int64) error { return nil }

func TestChunks(t *testing.T) {
	mine := strings.Repeat("0", 64)
	k, r, f, now := example(t)
	signature, err := k.Sign(r, f, Chunked, now)
	must.OK(t, err)
	if signature != seed || !strings.HasSuffix(r.Header.Get("Authorization"), "SignedHeaders=content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class, Signature="+seed) {
		t.Errorf("the head: %s %s", signature, r.Header.Get("Authorization"))
	}
	for _, tt := range []struct {
		name, in, want string
		trailer        bool
	}{
		{"chunks", body(mine, mine, mine, ""), body(first, second, last, ""), false},
		{"trailers", body(mine, mine, mine, mine), body(first, second, last, trailer), true},
	} {
		for way, source := range map[string]io.Reader{"whole": strings.NewReader(tt.in), "byte by byte": iotest.OneByteReader(strings.NewReader(tt.in))} {
			got, err := io.ReadAll(iotest.OneByteReader(k.NewChunks(io.NopCloser(source), f, seed, tt.trailer, now, plenty)))
			if err != nil || string(got) != tt.want {
				t.Errorf("%s, %s: %v, %d bytes, want %d", tt.name, way, err, len(got), len(tt.want))
			}
		}
	}
	// Whatever is not as it should be ends the body with an error.
	for name, in := range map[string]string{
		"nothing":              "",
		"cut in a chunk":       body(mine, mine, mine, "")[:66000],
		"cut in a line":        "10000;chunk-sig",
		"no signature":         "3\r\nabc\r\n0\r\n\r\n",
		"a short signature":    "0;chunk-signature=00\r\n\r\n",
		"a wrong size":         "2;chunk-signature=" + mine + "\r\nabc\r\n",
		"no size":              ";chunk-signature=" + mine + "\r\n\r\n",
		"a negative size":      "-1;chunk-signature=" + mine + "\r\n\r\n",
		"too much":             "100001;chunk-signature=" + mine + "\r\n",
		"more after the end":   "0;chunk-signature=" + mine + "\r\n\r\nGET",
		"bare LF":              "0;chunk-signature=" + mine + "\n\n",
		"an endless line":      strings.Repeat("0", 1<<16),
		"trailers, unsigned":   "0;chunk-signature=" + mine + "\r\na:b\r\n\r\n",
		"more after trailers":  "0;chunk-signature=" + mine + "\r\nx-amz-trailer-signature:" + mine + "\r\na:b\r\n\r\n",
		"too many trailers":    "0;chunk-signature=" + mine + "\r\n" + strings.Repeat("a:b\r\n", 1<<16),
		"one more after those": "0;chunk-signature=" + mine + "\r\nx-amz-trailer-signature:" + mine + "\r\n\r\nx",
	} {
		trailer := strings.Contains(name, "trailer") || strings.Contains(name, "those")
		_, err := io.ReadAll(k.NewChunks(io.NopCloser(strings.NewReader(in)), f, seed, trailer, now, plenty))
		if !errors.Is(err, ErrChunks) {
			t.Errorf("%s: %v", name, err)
		}
	}
	full := errors.New("no room")
	if _, err := io.ReadAll(k.NewChunks(io.NopCloser(strings.NewReader(body(mine, mine, mine, ""))), f, seed, false, now, func(int64) error { return full })); !errors.Is(err, full) {
		t.Errorf("without room: %v", err)
	}
}

// FuzzChunks: a body that is taken has the same length and data as it had, whatever it is.
func FuzzChunks(f *testing.F) {
	mine := strings.Repeat("0", 64)
	f.Add("3;chunk-signature="+mine+"\r\nabc\r\n0;chunk-signature="+mine+"\r\n\r\n", false)
	f.Add("0;chunk-signature="+mine+"\r\nx-amz-checksum-crc32c:AAAA\r\nx-amz-trailer-signature:"+mine+"\r\n\r\n", true)
	k := &Keys{ID: "AKIDEXAMPLE", Secret: "wJalrXUtnFEMI"}
	signatures := regexp.MustCompile(`(?i)(chunk-signature=|x-amz-trailer-signature:).{64}`)
	f.Fuzz(func(t *testing.T, in string, trailer bool) {
		got, err := io.ReadAll(k.NewChunks(io.NopCloser(strings.NewReader(in)), Form{Algorithm: V4, Service: "s3"}, seed, trailer, time.Now(), plenty))
		if err != nil {
			return
		}
		bare := func(b []byte) []byte { return signatures.ReplaceAll(b, nil) }
		if len(got) != len(in) || !bytes.Equal(bare(got), bare([]byte(in))) {
			t.Errorf("%q became %q", in, got)
		}
	})
}

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		name, url, auth, regions string
		want                     string
	}{
		{"header", "/", "AWS4-HMAC-SHA256 Credential=AKID/20150830/us-east-1/s3/aws4_request, SignedHeaders=Host;x-amz-date, Signature=0", "", "{AWS4-HMAC-SHA256 s3 us-east-1 [host x-amz-date] false 0}"},
		{"without spaces", "/", "AWS4-HMAC-SHA256 Credential=a/b/20150830/r/s/aws4_request,SignedHeaders=host,Signature=0", "", "{AWS4-HMAC-SHA256 s r [host] false 0}"},
		{"v4a", "/", "AWS4-ECDSA-P256-SHA256 Credential=AKID/20150830/s3/aws4_request, SignedHeaders=host, Signature=0", "*", "{AWS4-ECDSA-P256-SHA256 s3 * [host] false 0}"},
		{"query", "/?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKID%2F20150830%2Fus-east-1%2Fsts%2Faws4_request&X-Amz-Expires=60&X-Amz-SignedHeaders=host", "", "", "{AWS4-HMAC-SHA256 sts us-east-1 [host] true 60}"},
		{"none", "/", "Bearer x", "", "the request has no signature of AWS"},
		{"v2", "/", "AWS AKID:x", "", "the request has no signature of AWS"},
		{"no scope", "/", "AWS4-HMAC-SHA256 Credential=AKID", "", "the request's signature is not one of SigV4 or SigV4a"},
		{"v4a without regions", "/", "AWS4-ECDSA-P256-SHA256 Credential=AKID/20150830/s3/aws4_request", "", "the request's signature is not one of SigV4 or SigV4a"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := http.NewRequest("GET", "https://a.example"+tt.url, nil)
			must.OK(t, err)
			r.Header.Set("Authorization", tt.auth)
			if tt.regions != "" {
				r.Header.Set("X-Amz-Region-Set", tt.regions)
			}
			f, err := Parse(r)
			got := fmt.Sprint(f)
			if err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// A request is signed in the place of what it was signed with, and nothing else of it changes.
func TestSignInPlace(t *testing.T) {
	k := &Keys{ID: "AKIDREAL", Secret: "real", Session: "session/+="}
	r, err := http.NewRequest("GET", "https://b.s3.amazonaws.com/a%2Fb%20c!?b=2&acl&a=x+y&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIDMINE%2F20150830%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=old&X-Amz-Expires=60&X-Amz-SignedHeaders=host%3Brange&X-Amz-Signature=mine&X-Amz-Security-Token=mine", nil)
	must.OK(t, err)
	r.Header.Set("Range", "bytes=0-3")
	r.Header.Set("User-Agent", "x")
	f, err := Parse(r)
	must.OK(t, err)
	_, err = k.Sign(r, f, Unsigned, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	must.OK(t, err)
	before, after, _ := strings.Cut(r.URL.RequestURI(), "&X-Amz-Signature=")
	want := "/a%2Fb%20c%21?b=2&acl&a=x%20y&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIDREAL%2F20260102%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20260102T030405Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host%3Brange&X-Amz-Security-Token=session%2F%2B%3D"
	if before != want || len(after) != 64 || len(r.Header) != 2 {
		t.Errorf("got  %s\nwant %s\n%s %v", before, want, after, r.Header)
	}
}
