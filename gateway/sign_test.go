package gateway_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/websocket"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/gateway/credential"
	"sallyport/gateway/credential/sigv4"
	"sallyport/gateway/placeholder"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// The keys of AWS's test suite for SigV4a, and the public key that it derives from them.
const (
	suiteID     = "AKIDEXAMPLE"
	suiteSecret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
	suiteX      = "b6618f6a65740a99e650b33b6b4b5bd0d43b176d721a3edfea7e7d2d56d936b1"
	suiteY      = "865ed22a7eadc9c5cb9d2cbaca1b3699139fedc5043dc6661864218330c8e518"
)

// verified says why a request that an upstream got is not signed with the suite's keys, in
// its header; body is what it got of that. The path must be one that encoding leaves alone.
func verified(r *http.Request, body, session string) error {
	algorithm, rest, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	part := map[string]string{}
	for p := range strings.SplitSeq(rest, ", ") {
		name, value, _ := strings.Cut(p, "=")
		part[name] = value
	}
	scope, ok := strings.CutPrefix(part["Credential"], suiteID+"/")
	names := strings.Split(part["SignedHeaders"], ";")
	if !ok || r.Header.Get("X-Amz-Security-Token") != session || session != "" && !slices.Contains(names, "x-amz-security-token") {
		return fmt.Errorf("signed %q, session %q", r.Header.Get("Authorization"), r.Header.Get("X-Amz-Security-Token"))
	}
	sum := func(text string) string { h := sha256.Sum256([]byte(text)); return hex.EncodeToString(h[:]) }
	payload := r.Header.Get("X-Amz-Content-Sha256")
	if payload == "" {
		payload = sum(body)
	}
	canonical := r.Method + "\n" + r.URL.EscapedPath() + "\n" + r.URL.RawQuery + "\n"
	for _, name := range names {
		value := strings.Join(r.Header.Values(name), ",")
		if name == "host" {
			value = r.Host
		}
		canonical += name + ":" + value + "\n"
	}
	text := strings.Join([]string{algorithm, r.Header.Get("X-Amz-Date"), scope, sum(canonical + "\n" + part["SignedHeaders"] + "\n" + payload)}, "\n")
	switch algorithm {
	case sigv4.V4:
		key := []byte("AWS4" + suiteSecret)
		for _, s := range append(strings.Split(scope, "/"), text) {
			m := hmac.New(sha256.New, key)
			m.Write([]byte(s))
			key = m.Sum(nil)
		}
		if hex.EncodeToString(key) != part["Signature"] {
			return fmt.Errorf("another signature than of\n%s\n%s", text, canonical)
		}
	case sigv4.V4a:
		x, _ := new(big.Int).SetString(suiteX, 16)
		y, _ := new(big.Int).SetString(suiteY, 16)
		raw, _ := hex.DecodeString(part["Signature"])
		h := sha256.Sum256([]byte(text))
		if !ecdsa.VerifyASN1(&ecdsa.PublicKey{Curve: elliptic.P256(), X: x, Y: y}, h[:], raw) {
			return fmt.Errorf("no signature of\n%s\n%s", text, canonical)
		}
	default:
		return fmt.Errorf("signed by %q", algorithm)
	}
	return nil
}

// newSigning is an environment whose policy has each request signed in one way with what src
// has.
func newSigning(t *testing.T, version string, src credential.Source, sign policy.Inject, options ...option) *versionEnv {
	m := newVersionEnv(t, "transparent", version, version, "https", options...)
	m.broker = credential.New(credential.Options{
		Sources: map[string]credential.Source{"keys": src}, Bound: func(string, string, uint16) bool { return true },
	})
	m.policy(func(in policy.Input) policy.Decision {
		d := m.allow(in)
		if in.Request != nil {
			d.Inject = []policy.Injection{{Credential: "keys", Inject: sign}}
		}
		return d
	})
	return m
}

// ask sends a request that the sandbox has signed with keys of its own.
func (m *versionEnv) ask(t *testing.T, method, path, body string, f sigv4.Form, header ...string) *http.Response {
	t.Helper()
	r := m.request(t, method, path, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	if f.Service != "" {
		mine := &sigv4.Keys{ID: "AKIDMINE", Secret: "mine", Session: "a session of the sandbox's own"}
		_, err := mine.Sign(r, f, sigv4.Unsigned, time.Now())
		must.OK(t, err)
	}
	return m.do(t, r)
}

// Temporary keys sign with their session, in the place of the sandbox's, and SigV4a signs
// for the regions that the sandbox's SDK names.
func TestAWSSessionAndRegions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		version, session, body string
		form                   sigv4.Form
	}{
		{"h1", "a real session+/=", "", sigv4.Form{Algorithm: sigv4.V4, Service: "dynamodb", Region: "eu-central-1"}},
		{"h2", "a real session+/=", `{"a":1}`, sigv4.Form{Algorithm: sigv4.V4, Service: "dynamodb", Region: "eu-central-1", Headers: []string{"content-type", "x-mine"}}},
		{"h1", "a real session+/=", `{"a":1}`, sigv4.Form{Algorithm: sigv4.V4a, Service: "s3", Region: "*"}},
		{"h2", "", "", sigv4.Form{Algorithm: sigv4.V4a, Service: "s3", Region: "us-east-1,eu-*"}},
	} {
		src := &rotating{}
		fields := map[string]string{"accessKeyId": suiteID, "secretAccessKey": suiteSecret}
		if tt.session != "" {
			fields["sessionToken"] = tt.session
		}
		src.set(fields)
		m := newSigning(t, tt.version, src, policy.Inject{AWS: &policy.AWSInject{}})
		m.origin.handle("/", func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if err := verified(r, string(body), tt.session); err != nil || string(body) != tt.body {
				t.Errorf("%s %s: %v, %q", tt.version, tt.form.Algorithm, err, body)
			}
			if want := tt.form.Region; tt.form.Algorithm == sigv4.V4a && r.Header.Get("X-Amz-Region-Set") != want {
				t.Errorf("signed for the regions %q, want %q", r.Header.Get("X-Amz-Region-Set"), want)
			}
		})
		if resp := m.ask(t, "POST", "/a", tt.body, tt.form, "Content-Type", "application/json", "X-Mine", "a\u00a0b"); resp.StatusCode != 200 {
			t.Errorf("%s %s: %d %s", tt.version, tt.form.Algorithm, resp.StatusCode, text(t, resp))
		}
	}
}

// A request whose signature an upstream does not take is signed anew with other keys, where
// it may be sent again: also with a body that was read to be signed.
func TestRefusedSignatureIsMadeAnew(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		kind   string
		inject policy.Inject
		method string
		times  int
	}{
		{"aws", policy.Inject{AWS: &policy.AWSInject{Service: "dynamodb", Region: "eu-central-1"}}, "GET", 2},
		{"aws", policy.Inject{AWS: &policy.AWSInject{Service: "dynamodb", Region: "eu-central-1"}}, "PUT", 2},
		{"aws", policy.Inject{AWS: &policy.AWSInject{Service: "dynamodb", Region: "eu-central-1"}}, "POST", 1},
		{"hmac", policy.Inject{HMAC: &policy.HMACInject{Key: "{{ .secretAccessKey }}", Sign: "{method}{bodySha256}", Headers: map[string]string{"X-Signature": "{signature}"}}}, "PUT", 2},
	} {
		t.Run(tt.kind+" "+tt.method, func(t *testing.T) {
			t.Parallel()
			var readings int
			src := sourceFunc(func() credential.Material {
				readings++
				secret := "wJalrXUtnFEMI/K7MDENG-the-first-keys"
				if readings > 1 {
					secret = suiteSecret
				}
				return credential.Material{Version: fmt.Sprint(readings), Expires: time.Now().Add(time.Hour), Fields: map[string]credential.Secret{
					"accessKeyId": credential.NewSecret(suiteID), "secretAccessKey": credential.NewSecret(secret),
				}}
			})
			m := newSigning(t, "h1", src, tt.inject)
			asked, body := 0, ""
			if tt.method != "GET" {
				body = "the body that is signed"
			}
			m.origin.handle("/", func(w http.ResponseWriter, r *http.Request) {
				got, _ := io.ReadAll(r.Body)
				asked++
				err := verified(r, string(got), "")
				if tt.kind == "hmac" {
					sum := sha256.Sum256(got)
					mac := hmac.New(sha256.New, []byte(suiteSecret))
					fmt.Fprintf(mac, "%s%x", r.Method, sum)
					if err = nil; r.Header.Get("X-Signature") != hex.EncodeToString(mac.Sum(nil)) {
						err = fmt.Errorf("signed with other keys")
					}
				}
				if string(got) != body {
					t.Errorf("the body is %q", got)
				}
				if err != nil {
					w.WriteHeader(http.StatusUnauthorized)
				}
			})
			resp := m.ask(t, tt.method, "/a", body, sigv4.Form{})
			if resp.StatusCode != map[int]int{1: 401, 2: 200}[tt.times] || asked != tt.times {
				t.Errorf("%d %s, asked %d times", resp.StatusCode, text(t, resp), asked)
			}
		})
	}
}

// A signature is worth the request that it is of to whoever has it: no answer gives it to
// the sandbox, also not in the address that an answer redirects to.
func TestSignaturesStayOutOfAnswers(t *testing.T) {
	t.Parallel()
	keys := map[string]string{"accessKeyId": suiteID, "secretAccessKey": suiteSecret}
	sign := policy.Inject{HMAC: &policy.HMACInject{Key: "{{ .secretAccessKey }}", Sign: "{path}\n{timestamp}", Encoding: "base64", Headers: map[string]string{"X-Signature": "v1={signature}"}}}
	for name, tt := range map[string]struct {
		inject policy.Inject
		form   sigv4.Form
		of     func(*http.Request) string
	}{
		"header":    {policy.Inject{AWS: &policy.AWSInject{}}, sigv4.Form{Algorithm: sigv4.V4, Service: "s3", Region: "r"}, func(r *http.Request) string { return r.Header.Get("Authorization") }},
		"presigned": {policy.Inject{AWS: &policy.AWSInject{}}, sigv4.Form{Algorithm: sigv4.V4, Service: "s3", Region: "r", Query: true, Expires: 60}, func(r *http.Request) string { return r.URL.Query().Get("X-Amz-Signature") }},
		"v4a":       {policy.Inject{AWS: &policy.AWSInject{}}, sigv4.Form{Algorithm: sigv4.V4a, Service: "s3", Region: "r"}, func(r *http.Request) string { return r.Header.Get("Authorization") }},
		"hmac":      {sign, sigv4.Form{}, func(r *http.Request) string { return strings.TrimPrefix(r.Header.Get("X-Signature"), "v1=") }},
	} {
		for _, version := range []string{"h1", "h2"} {
			t.Run(name+" "+version, func(t *testing.T) {
				t.Parallel()
				src := &rotating{}
				src.set(keys)
				m := newSigning(t, version, src, tt.inject)
				m.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
				var mu sync.Mutex
				var signature string
				m.origin.handle("/", func(w http.ResponseWriter, r *http.Request) {
					mu.Lock()
					defer mu.Unlock()
					signature = tt.of(r)
					signature = signature[strings.LastIndex(signature, "Signature=")+1:]
					signature = strings.TrimPrefix(signature, "ignature=")
					w.Header().Set("Location", "https://other.example.test"+r.URL.RequestURI())
					w.Header().Set("X-Echo", r.Header.Get("Authorization")+r.Header.Get("X-Signature"))
					w.WriteHeader(http.StatusTemporaryRedirect)
					fmt.Fprintf(w, "plain %s, hex %x, %s", signature, signature, strings.Repeat("x", 4<<10))
				})
				resp := m.ask(t, "GET", "/a", "", tt.form)
				answer := fmt.Sprint(resp.Header) + text(t, resp)
				mu.Lock()
				defer mu.Unlock()
				if len(signature) < 40 || strings.Contains(answer, signature) || strings.Contains(answer, hex.EncodeToString([]byte(signature))) || !strings.Contains(answer, "plain ****") {
					t.Errorf("the signature %s is in the answer %.900s", signature, answer)
				}
				_, completions := m.settled(t)
				for _, c := range completions {
					if len(c.Unmapped.Sallyport.Found) != 1 || c.Unmapped.Sallyport.Found[0].Name != "keys" {
						t.Errorf("the completion has %v: %s", c.Unmapped.Sallyport.Found, c.Message)
					}
				}
			})
		}
	}
}

// The messages of a WebSocket whose handshake was signed are searched too.
func TestSignatureStaysOutOfMessages(t *testing.T) {
	t.Parallel()
	src := &rotating{}
	src.set(map[string]string{"key": "key-0123456789abcdef"})
	m := newSigning(t, "h1", src, policy.Inject{HMAC: &policy.HMACInject{Key: "{{ .key }}", Sign: "{path}", Headers: map[string]string{"X-Signature": "{signature}"}}})
	m.origin.mux.Handle("/socket", websocket.Handler(func(c *websocket.Conn) {
		signature := c.Request().Header.Get("X-Signature")
		_, _ = fmt.Fprintf(c, "%d plain %s, hex %x", len(signature), signature, signature)
		_, _ = fmt.Fprintf(c, "and %s again", signature)
	}))
	s, _, err := m.upgrade(t, "/socket")
	must.OK(t, err)
	for _, want := range []string{"64 plain " + strings.Repeat("*", 64) + ", hex " + strings.Repeat("*", 128), "and " + strings.Repeat("*", 64) + " again"} {
		if _, got, err := s.receive(); err != nil || string(got) != want {
			t.Errorf("%v, got %s, want %s", err, got, want)
		}
	}
}

// Nothing is signed whose answer would give the sandbox keys of its own, however it is asked
// for; what only reads is.
func TestAWSGivesNoKeys(t *testing.T) {
	t.Parallel()
	src := &rotating{}
	src.set(map[string]string{"accessKeyId": suiteID, "secretAccessKey": suiteSecret})
	m := newSigning(t, "h1", src, policy.Inject{AWS: &policy.AWSInject{}})
	reached := 0
	m.origin.handle("/", func(_ http.ResponseWriter, r *http.Request) { reached++ })
	const form = "application/x-www-form-urlencoded"
	signs := 0
	for i, tt := range []struct {
		service, method, path, body string
		header                      []string
		status                      int
	}{
		{"sts", "POST", "/", "Action=GetCallerIdentity&Version=2011-06-15", []string{"Content-Type", form}, 200},
		{"sts", "GET", "/?Action=GetCallerIdentity&Version=2011-06-15", "", nil, 200},
		{"sts", "POST", "/", "Action=GetSessionToken&Version=2011-06-15", []string{"Content-Type", form + "; charset=utf-8"}, 403},
		{"sts", "GET", "/?Action=AssumeRole", "", nil, 403},
		{"sts", "GET", "/?%41ction=%41ssumeRole", "", nil, 403},
		{"sts", "POST", "/?Action=GetCallerIdentity", "Action=AssumeRole", []string{"Content-Type", form}, 403},
		{"sts", "POST", "/", "Action=GetCallerIdentity&Action=AssumeRole", []string{"Content-Type", form}, 403},
		{"sts", "POST", "/", "Action=GetCallerIdentity&action=AssumeRole", []string{"Content-Type", form}, 403},
		{"sts", "POST", "/", "Action=GetCallerIdentity", []string{"Content-Type", form, "Content-Encoding", "gzip"}, 400},
		{"sts", "POST", "/", "Action=GetCallerIdentity", []string{"Content-Type", "text/plain"}, 400},
		{"sts", "POST", "/", "Action=GetCallerIdentity;Action=AssumeRole", []string{"Content-Type", form}, 400},
		{"sts", "POST", "/", `{"Action":"GetSessionToken"}`, []string{"Content-Type", "application/x-amz-json-1.1", "X-Amz-Target", "STS.GetSessionToken"}, 400},
		{"sts", "POST", "/", "", nil, 403},
		{"sts", "POST", "/", "Action=GetCallerIdentity" + strings.Repeat("&a", 200<<10), []string{"Content-Type", form}, 400},
		{"iam", "POST", "/", "Action=CreateAccessKey&UserName=a", []string{"Content-Type", form}, 403},
		{"iam", "POST", "/", "Action=ListUsers", []string{"Content-Type", form}, 200},
		{"ecr", "POST", "/", "{}", []string{"X-Amz-Target", "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken"}, 403},
		{"ecr", "POST", "/", "{}", []string{"X-Amz-Target", "AmazonEC2ContainerRegistry_V20150921.DescribeImages"}, 200},
		{"ecr", "POST", "/service/a/operation/GetAuthorizationToken", "", nil, 403},
		{"codeartifact", "POST", "/v1/authorization-token?domain=d", "", nil, 403},
		{"s3express", "GET", "/?session", "", nil, 403},
		{"s3", "GET", "/?%73ession=", "", nil, 403},
		{"s3", "GET", "/v20180820/accessgrantsinstance/dataaccess?target=t", "", nil, 403},
		{"s3", "GET", "/bucket/GetSessionToken", "", nil, 200},
	} {
		resp := m.ask(t, tt.method, tt.path, tt.body, sigv4.Form{Algorithm: sigv4.V4, Service: tt.service, Region: "eu-central-1", Query: i%2 == 1, Expires: 9}, tt.header...)
		if resp.StatusCode != tt.status {
			t.Errorf("%s %s %s %.99q: %d %s, want %d", tt.service, tt.method, tt.path, tt.body, resp.StatusCode, text(t, resp), tt.status)
		}
		if tt.status == 200 {
			signs++
		}
	}
	if reached != signs {
		t.Errorf("%d requests have left, want %d", reached, signs)
	}
}

// A body that has to be signed is signed as it leaves: with the secret of another credential
// in the place of its placeholder.
func TestSignedBodyHasItsPlaceholdersReplaced(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"h1", "h2"} {
		src := &rotating{}
		src.set(map[string]string{"accessKeyId": suiteID, "secretAccessKey": suiteSecret})
		m := newSigning(t, version, src, policy.Inject{}, func(o *gateway.Options) {
			o.Placeholders = func(string) *placeholder.Set { return heldSet }
		})
		m.broker = credential.New(credential.Options{
			Sources: map[string]credential.Source{"keys": src, "key": secret(token)}, Bound: func(string, string, uint16) bool { return true },
		})
		m.policy(func(in policy.Input) policy.Decision {
			d := m.allow(in)
			if in.Request != nil {
				d.Inject = []policy.Injection{{Credential: "keys", Inject: policy.Inject{AWS: &policy.AWSInject{Service: "dynamodb", Region: "r"}}}}
				if in.Request.Path == "/replaced" {
					d.Inject = append(d.Inject, policy.Injection{Credential: "key", Inject: policy.Inject{Placeholder: []string{policy.PlaceBody}}})
				}
			}
			return d
		})
		reached := 0
		m.origin.handle("/", func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			reached++
			if err := verified(r, string(body), ""); err != nil || string(body) != "key="+token {
				t.Errorf("%s: %v, %q", version, err, body)
			}
		})
		for path, status := range map[string]int{"/replaced": 200, "/kept": 403} {
			resp := m.ask(t, "POST", path, "key="+own.Text, sigv4.Form{}, "Content-Type", "application/x-www-form-urlencoded")
			if resp.StatusCode != status {
				t.Errorf("%s %s: %d %s", version, path, resp.StatusCode, text(t, resp))
			}
		}
		_, completions := m.settled(t)
		thefts := 0
		for _, c := range completions {
			if c.SeverityID == audit.SeverityHigh && strings.Contains(c.Message, "the placeholder of credential key stands where it is not replaced") {
				thefts++
			}
		}
		if reached != 1 || thefts != 1 {
			t.Errorf("%s: %d requests have left, %d were noted", version, reached, thefts)
		}
	}
}

// sourceFunc is a remote source.
type sourceFunc func() credential.Material

func (f sourceFunc) Read(context.Context) (credential.Material, error) { return f(), nil }

func (sourceFunc) TTL() time.Duration { return time.Hour }
