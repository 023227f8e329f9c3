package gateway_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"sallyport/policy"
)

// Whatever an injection makes of a secret is found in the form in which it left,
// too: what an upstream encodes again is what it got, not what that stands for.
func TestAppliedFormsComeBackScrubbed(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t/+ =&%\"<pw>"
	for name, in := range map[string]policy.Inject{
		"basic":  {Basic: &policy.BasicInject{Username: "robot", Password: "{{ .token }}"}},
		"query":  {Query: &policy.QueryInject{Name: "key", Value: "{{ .token }}"}},
		"header": {Header: &policy.HeaderInject{Name: "X-Key", Value: "v1 {{ .token }} end"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newVersionEnv(t, "transparent", "h2", "h1", "https")
			m.credential("key", secret)
			m.policy(func(asked policy.Input) policy.Decision {
				d := m.keyed(asked)
				if len(d.Inject) > 0 {
					d.Inject[0].Inject = in
				}
				return d
			})
			m.handle("/keyed", func(w http.ResponseWriter, r *http.Request) {
				_, password, _ := r.BasicAuth()
				_, coded, _ := strings.Cut(r.Header.Get("Authorization"), " ")
				for _, text := range []string{
					r.Header.Get("Authorization"), coded, password, r.Header.Get("X-Key"), r.URL.RawQuery, r.URL.Query().Get("key"),
				} {
					if text == "" {
						continue
					}
					for _, said := range []string{
						text, url.QueryEscape(text), fmt.Sprintf("%q", text), fmt.Sprintf("%x", text),
						base64.StdEncoding.EncodeToString([]byte(text)), base64.URLEncoding.EncodeToString([]byte("x" + text)),
					} {
						fmt.Fprintln(w, said)
					}
				}
			})
			body := text(t, m.do(t, m.request(t, "GET", "/keyed", nil)))
			lines := strings.Split(strings.TrimSpace(body), "\n")
			if len(lines) < 6 {
				t.Fatalf("the upstream was not sent the secret: %s", body)
			}
			for _, line := range lines {
				if !strings.Contains(line, "****") {
					t.Errorf("the sandbox sees %s", line)
				}
			}
		})
	}
}
