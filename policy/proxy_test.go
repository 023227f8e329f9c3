package policy_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/policy"
)

// A credential is bound to the proxies that rules log in to with it, by whatever
// spelling of their URL, and to no other.
func TestProxyLogins(t *testing.T) {
	through := func(proxy, credential string) *policy.Upstream {
		return &policy.Upstream{Proxy: proxy, ProxyAuthRef: credential}
	}
	doc := policy.Document{
		Egress: []policy.EgressRule{
			{Upstream: through("http://Proxy.example.com.:3128/", "corp")},
			{Upstream: through("http://proxy.example.com:3128", "corp")},
			{Upstream: through("http://open.example.com:3128", "")},
			{},
		},
		EgressAuth: []policy.EgressAuthRule{
			{AuthRef: "key", Upstream: through("socks5://[2001:DB8::1]:1080", "corp")},
			{AuthRef: "key", Upstream: through("https://proxy.example.com:3128", "other")},
		},
	}
	want := map[string][]string{
		"corp":  {"http://proxy.example.com:3128", "socks5://[2001:db8::1]:1080"},
		"other": {"https://proxy.example.com:3128"},
	}
	if diff := cmp.Diff(doc.ProxyLogins(), want); diff != "" {
		t.Error(diff)
	}
}
