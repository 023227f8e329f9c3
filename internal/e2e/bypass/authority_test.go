package bypass

import "testing"

const sawX = "GET api.example.test /v1/x ours"

// Which host a request is for is said in up to five places: the address that was
// connected to, SNI, Host or :authority, an absolute target, and CONNECT. They
// agree, or nothing leaves.
var authorities = []attempt{
	{name: "SNI of another allowed host", sent: ask(get(other, "/v1/x")).with(Handshake{Name: other}), want: "403", log: "deny name"},
	{name: "SNI of a denied host", sent: ask(get(denied, "/v1/x")).with(Handshake{Name: denied}), want: "403", log: "deny name"},
	{name: "SNI of a denied host, Host of the allowed one", sent: ask(get(api, "/v1/x")).with(Handshake{Name: denied}), want: "403", log: "deny name"},
	{name: "SNI in upper case of a denied host", sent: ask(get(api, "/v1/x")).with(Handshake{Name: "DENIED.EXAMPLE.TEST"}), want: "403", log: "deny name"},
	{name: "SNI of a decimal address", sent: ask(get(api, "/v1/x")).with(Handshake{Name: "3325256714"}), want: "403", log: "deny name"},
	{name: "SNI of a hexadecimal address", sent: ask(get(api, "/v1/x")).with(Handshake{Name: "0xc633640a"}), want: "403", log: "deny name"},
	{name: "SNI in UTF-8", sent: ask(get(api, "/v1/x")).with(Handshake{Name: "bücher.example.test"}), want: "403", log: "deny name"},
	{name: "SNI with a NUL", sent: ask(get(api, "/v1/x")).with(Handshake{Name: "api.example.test\x00.denied.example.test"}), want: "403", log: "deny name"},
	{name: "a denied host, by its own name", sent: ask(get(denied, "/v1/x")).at(denied + ":443"), want: "403", log: "deny denied"},
	{name: "a denied host, with the Host of an allowed one", sent: ask(get(api, "/v1/x")).at(denied + ":443"), want: "403", log: "deny denied"},
	{name: "a denied host, with the SNI of an allowed one", sent: ask(get(api, "/v1/x")).at(denied + ":443").with(Handshake{Name: api}), want: "403", log: "deny stale-name"},
	{name: "an unlisted host", sent: ask(get(unlisted, "/v1/x")).at(unlisted + ":443"), want: "403", log: "deny -"},
	{name: "an allowed host on another port", sent: ask(get(api+":8443", "/v1/x")).at(api + ":8443"), want: "403", log: "deny -"},

	{name: "no SNI, Host of a denied host", sent: ask(get(denied, "/v1/x")).with(Handshake{}), want: "421", log: "deny host",
		legal: ask(get(api, "/v1/x")).with(Handshake{}), legalSaw: sawX},
	{name: "Host of another allowed host", sent: ask(get(other, "/v1/x")), want: "421", log: "deny host"},
	{name: "Host of a denied host", sent: ask(get(denied, "/v1/x")), want: "421", log: "deny host"},
	{name: "Host of a denied host, without TLS", sent: ask(get(denied, "/v1/x")).at(other + ":80").bare(), want: "421", log: "deny host",
		legal: ask(get(other, "/v1/x")).at(other + ":80").bare(), legalSaw: "GET other.example.test /v1/x none"},
	{name: "a credential without TLS", sent: ask(get(api, "/v1/x")).at(api + ":80").bare(), want: "403", log: "deny -"},
	{name: "Host in upper case of a denied host", sent: ask(get("DENIED.EXAMPLE.TEST", "/v1/x")), want: "421", log: "deny host",
		legal: ask(get("API.Example.TEST", "/v1/x")), legalSaw: sawX},
	{name: "Host with final dot of a denied host", sent: ask(get("denied.example.test.", "/v1/x")), want: "421", log: "deny host",
		legal: ask(get("api.example.test.", "/v1/x")), legalSaw: sawX},
	{name: "Host with two final dots", sent: ask(get("api.example.test..", "/v1/x")), want: "400", log: "deny host"},
	{name: "Host with another port", sent: ask(get(api+":8443", "/v1/x")), want: "421", log: "deny host",
		legal: ask(get(api+":443", "/v1/x")), legalSaw: sawX},
	{name: "Host with an empty port", sent: ask(get(api+":", "/v1/x")), want: "400", log: "deny host"},
	{name: "Host with a port that is too large", sent: ask(get(api+":65979", "/v1/x")), want: "400", log: "deny host"}, // 443 + 65536
	{name: "Host with two ports", sent: ask(get(api+":443:8443", "/v1/x")), want: "400", log: "deny host"},
	{name: "Host with user information", sent: ask(get("api.example.test@denied.example.test", "/v1/x")), want: "400", log: "deny host"},
	{name: "Host with a denied host as user", sent: ask(get("denied.example.test:443@api.example.test", "/v1/x")), want: "400", log: "deny host"},
	{name: "Host with a NUL", sent: ask(get("api.example.test\x00.denied.example.test", "/v1/x")), want: "400 closed", log: "deny request-form"},
	{name: "Host with an encoded NUL", sent: ask(get("api.example.test%00.denied.example.test", "/v1/x")), want: "400", log: "deny host"},
	{name: "Host percent-encoded", sent: ask(get("denied%2eexample.test", "/v1/x")), want: "400", log: "deny host"},
	{name: "Host with a path", sent: ask(get("denied.example.test/api.example.test", "/v1/x")), want: "400", log: "deny host"},
	{name: "Host with a backslash", sent: ask(get("denied.example.test\\.api.example.test", "/v1/x")), want: "400", log: "deny host"},
	{name: "Host with a fragment", sent: ask(get("denied.example.test#api.example.test", "/v1/x")), want: "400", log: "deny host"},
	{name: "Host as a list", sent: ask(get("api.example.test, denied.example.test", "/v1/x")), want: "400", log: "deny host"},
	{name: "Host with a space", sent: ask(get("api.example.test denied.example.test", "/v1/x")), want: "400", log: "deny host"},
	{name: "Host empty", sent: ask(get("", "/v1/x")), want: "400", log: "deny host"},
	{name: "no Host", sent: ask("GET /v1/x HTTP/1.1\r\n\r\n"), want: "400 closed", log: "deny request-form"},
	{name: "two Hosts", sent: ask(get(api, "/v1/x", "Host: denied.example.test")), want: "400 closed", log: "deny request-form"},
	{name: "two Hosts, the second in other case", sent: ask(get(api, "/v1/x", "hOST: api.example.test")), want: "400 closed", log: "deny request-form"},
	{name: "a second Host with a space before its colon", sent: ask(get(api, "/v1/x", "Host : denied.example.test")), want: "400 closed", log: "deny request-form"},

	{name: "Host in UTF-8", sent: ask(get("bücher.example.test", "/v1/x")).at(idn + ":443"), want: "400", log: "deny host",
		legal: ask(get(idn, "/v1/x")).at(idn + ":443"), legalSaw: "GET xn--bcher-kva.example.test /v1/x none"},
	{name: "Host with full-width dots", sent: ask(get("api。example。test", "/v1/x")), want: "400", log: "deny host"},
	{name: "Host with full-width letters", sent: ask(get("ａｐｉ.example.test", "/v1/x")), want: "400", log: "deny host"},
	{name: "Host with a letter that looks alike", sent: ask(get("аpi.example.test", "/v1/x")), want: "400", log: "deny host"},
	{name: "Host in the other form of IDN", sent: ask(get("xn--pi-7kc.example.test", "/v1/x")), want: "421", log: "deny host",
		legal: ask(get("XN--BCHER-KVA.example.test", "/v1/x")).at(idn + ":443"), legalSaw: "GET xn--bcher-kva.example.test /v1/x none"},
	{name: "Host with a soft hyphen", sent: ask(get("api.exam\u00adple.test", "/v1/x")), want: "400", log: "deny host"},

	{name: "Host of an address", sent: ask(get(upstreamAddress, "/v1/x")), want: "421", log: "deny host"},
	{name: "Host of an address in decimal", sent: ask(get("3325256714", "/v1/x")), want: "400", log: "deny host"},
	{name: "Host of an address in hexadecimal", sent: ask(get("0xc633640a", "/v1/x")), want: "400", log: "deny host"},
	{name: "Host of an address in octal", sent: ask(get("0306.063.0144.012", "/v1/x")), want: "400", log: "deny host"},
	{name: "Host of a short address", sent: ask(get("127.1", "/v1/x")), want: "400", log: "deny host"},
	{name: "Host of an address with a final dot", sent: ask(get("198.51.100.10.", "/v1/x")), want: "400", log: "deny host"},
	{name: "Host of an IPv4 address in IPv6", sent: ask(get("[::ffff:198.51.100.10]", "/v1/x")), want: "421", log: "deny host"},
	{name: "Host of an IPv4 address in IPv6, in hexadecimal", sent: ask(get("[::ffff:c633:640a]:443", "/v1/x")), want: "421", log: "deny host"},
	{name: "Host of an IPv6 address with a zone", sent: ask(get("[fe80::1%25eth0]", "/v1/x")), want: "400", log: "deny host"},
	{name: "Host of an IPv6 address without brackets", sent: ask(get("::1", "/v1/x")), want: "400", log: "deny host"},

	{name: "absolute target of a denied host", sent: ask(get(api, "https://denied.example.test/v1/x")), want: "421", log: "deny host",
		legal: ask(get(api, "https://api.example.test/v1/x")), legalSaw: sawX},
	{name: "absolute target of another allowed host", sent: ask(get(api, "https://other.example.test/v1/x")), want: "421", log: "deny host"},
	// RFC 9112, section 3.2.2: the target counts, and what leaves says one thing only.
	{name: "absolute target, Host of a denied host", sent: ask(get(denied, "https://api.example.test/v1/x")), want: "200", log: "allow api", saw: []string{sawX}},
	{name: "absolute target of another scheme", sent: ask(get(api, "http://api.example.test/v1/x")), want: "421", log: "deny scheme"},
	{name: "absolute target of a scheme that is no web's", sent: ask(get(api, "file://api.example.test/etc/passwd")), want: "421", log: "deny scheme"},
	{name: "absolute target with user information", sent: ask(get(api, "https://denied.example.test@api.example.test/v1/x")), want: "400", log: "deny userinfo"},
	{name: "absolute target with a backslash", sent: ask(get(api, `https://denied.example.test\@api.example.test/v1/x`)), want: "400 closed", log: "deny request-form"},
	{name: "absolute target with another port", sent: ask(get(api, "https://api.example.test:8443/v1/x")), want: "421", log: "deny host"},
	{name: "absolute target, percent-encoded host", sent: ask(get(api, "https://denied%2eexample.test/v1/x")), want: "400 closed", log: "deny request-form"},
	{name: "target with two slashes", sent: ask(get(api, "//denied.example.test/v1/x")), want: "403", log: "deny api"},
	{name: "absolute target without TLS", sent: ask(get(other, "http://denied.example.test/v1/x")).at(other + ":80").bare(), want: "421", log: "deny host",
		legal: ask(get(other, "http://other.example.test/v1/x")).at(other + ":80").bare(), legalSaw: "GET other.example.test /v1/x none"},

	{name: "CONNECT inside of TLS", sent: ask("CONNECT denied.example.test:443 HTTP/1.1\r\nHost: denied.example.test:443\r\n\r\n"), want: "405", log: "deny nested-connect"},
	{name: "CONNECT to the same host", sent: ask("CONNECT api.example.test:443 HTTP/1.1\r\nHost: api.example.test:443\r\n\r\n"), want: "405", log: "deny nested-connect"},
	{name: "CONNECT, Host of the allowed one", sent: ask("CONNECT denied.example.test:443 HTTP/1.1\r\nHost: api.example.test\r\n\r\n"), want: "405", log: "deny nested-connect"},
	{name: "CONNECT without TLS", sent: ask("CONNECT denied.example.test:443 HTTP/1.1\r\nHost: denied.example.test:443\r\n\r\n").at(other + ":80").bare(),
		want: "405", log: "deny nested-connect"},
	{name: "CONNECT with a body", sent: ask("CONNECT denied.example.test:443 HTTP/1.1\r\nHost: denied.example.test:443\r\nContent-Length: 5\r\n\r\nhello"),
		want: "400 closed", log: "deny request-form"},
	{name: "CONNECT in lower case", sent: ask("connect denied.example.test:443 HTTP/1.1\r\nHost: api.example.test\r\n\r\n"), want: "400 closed", log: "deny request-form"},
}

func TestNoWayAround(t *testing.T) {
	r := newRig(t)
	for _, g := range []struct {
		name string
		all  []attempt
	}{
		{"authority", authorities},
	} {
		t.Run(g.name, func(t *testing.T) {
			for _, a := range g.all {
				t.Run(a.name, func(t *testing.T) { a.run(t, r.a) })
			}
		})
	}
}
