package form

import (
	"strings"
	"testing"

	"sallyport/policy"
)

func TestHostname(t *testing.T) {
	tests := []struct{ in, want string }{
		{"api.example.test", "api.example.test"},
		{"API.Example.Test.", "api.example.test"},
		{"_dmarc.example.test", "_dmarc.example.test"},
		{"xn--bcher-kva.example", "xn--bcher-kva.example"},
		{"203.0.113.1", "203.0.113.1"},
		{"2001:DB8::1", "2001:db8::1"},
		{"::ffff:203.0.113.1", "203.0.113.1"},
		{"1password.com", "1password.com"},
		{"", ""}, {".", ""}, {"a..b", ""}, {"a b", ""}, {"a/b", ""}, {"u@h", ""}, {"a\x00b", ""}, {"a\nb", ""}, {"bücher.example", ""},
		{"fe80::1%eth0", ""}, {"127.1", ""}, {"0x7f.1", ""}, {"2130706433", ""}, {"0177.0.0.1", ""}, {"a.0x7f", ""}, {"0x", ""}, {"a.0X", ""}, {"a.0x1ffffffffffffffff", ""}, {"a.0xg", "a.0xg"}, {"1.2.3.4.5", ""}, {"203.0.113.1.", ""},
		{strings.Repeat("a", 64) + ".test", ""}, {strings.Repeat("a.", 127) + "test", ""},
	}
	for _, test := range tests {
		if got, err := Hostname(test.in); got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%q: %q %v, want %q", test.in, got, err, test.want)
		}
	}
}

func TestQueryKeys(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "a=1&b=2&a=3": "a,b", "b;a=1": "a,b", "%61=1": "a", "a+b=1": "a b", "%zz=1": "%zz", "&&": "", "=x": "",
	} {
		if got := strings.Join(policy.QueryKeys(in), ","); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
