package credential_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"hash"
	"net/http"
	"strings"
	"testing"
	"time"

	"sallyport/gateway/credential"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// The signed text is the rule's with the request's parts in it, and a verifier that knows the
// key comes to the same.
func TestHMAC(t *testing.T) {
	const key, body = "key-0123456789abcdef", "{method} of a body"
	at := time.UnixMilli(1700000000123)
	secret := fields{"key": key, "id": "robot"}
	sum := func(of func() hash.Hash, text string) []byte {
		m := hmac.New(of, []byte(key))
		m.Write([]byte(text))
		return m.Sum(nil)
	}
	bodySum := sha256.Sum256([]byte(body))
	digest := hex.EncodeToString(bodySum[:])
	for _, tt := range []struct {
		name   string
		inject policy.HMACInject
		want   map[string]string
	}{
		{"all of it", policy.HMACInject{
			Key: "{{ .key }}", Sign: "{method}\n{host}\n{path}\n{query}\n{timestamp}\n{bodySha256}",
			Headers: map[string]string{"X-Signature": "{signature}", "X-Timestamp": "{timestamp}", "X-Key-Id": "{{ .id }}"},
		}, map[string]string{
			"X-Signature": hex.EncodeToString(sum(sha256.New, "POST\napi.example.com\n/v1/a%20b\nq=1&q=2\n1700000000\n"+digest)),
			"X-Timestamp": "1700000000", "X-Key-Id": "robot",
		}},
		{"body, sha512, base64", policy.HMACInject{
			Key: "{{ .key }}", Sign: "v0:{timestampMs}:{body}", Algorithm: "sha512", Encoding: "base64",
			Headers: map[string]string{"Authorization": "HMAC {{ .id }}:{signature}"},
		}, map[string]string{
			"Authorization": "HMAC robot:" + base64.StdEncoding.EncodeToString(sum(sha512.New, "v0:1700000000123:"+body)),
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := http.NewRequest("POST", "https://api.example.com/v1/a%20b?q=1&q=2", strings.NewReader(body))
			must.OK(t, err)
			r.Header["x_signature"] = []string{"mine"}
			r.Header["Authorization"] = []string{"mine"}
			l := lease(t, secret)
			l.Signing = credential.Signing{
				Sent: r, Now: at,
				Hash: func() (string, error) { return digest, nil },
				Body: func() ([]byte, error) { return []byte(body), nil },
			}
			inject := policy.Inject{HMAC: &tt.inject}
			if !credential.Own(inject, r) {
				t.Error("what the sandbox has put there is not noticed")
			}
			must.OK(t, l.Apply(r, inject))
			for name, want := range tt.want {
				if got := r.Header.Values(name); len(got) != 1 || got[0] != want {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
			if len(tt.want) > 1 && r.Header["x_signature"] != nil {
				t.Error("the sandbox's own x_signature is left")
			}
			if strings.Contains(strings.Join(printed(l, r.Header), ""), key) {
				t.Error("the key has left")
			}
		})
	}
	refused := errors.New("too long")
	r := request(t, "https://api.example.com/")
	l := lease(t, secret)
	l.Signing = credential.Signing{Sent: r, Now: at, Hash: func() (string, error) { return "", refused }}
	if err := l.Apply(r, policy.Inject{HMAC: &policy.HMACInject{Key: "{{ .key }}", Sign: "{bodySha256}", Headers: map[string]string{"X-Signature": "{signature}"}}}); !errors.Is(err, refused) || len(r.Header) > 0 {
		t.Errorf("a body that is not had: %v, %v", err, r.Header)
	}
}
