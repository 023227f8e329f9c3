package bypass

import (
	"encoding/base64"
	"strings"
)

// login is what a client of the explicit proxy says who it is with. TOKEN stands
// for its token, which is made as the test runs.
const login = "Proxy-Authorization: Basic TOKEN"

// connect is a CONNECT for host:port.
func connect(to string, headers ...string) string {
	return "CONNECT " + to + " HTTP/1.1\r\nHost: " + to + "\r\n" + strings.Join(append(headers, ""), "\r\n") + "\r\n"
}

// through is a visit by way of the explicit proxy: what is sent goes through a
// CONNECT for to, with the handshake's name there unless it has another.
func through(to string, v visit) visit {
	v.before = connect(to, login)
	return v.at(to)
}

// proxied is what the proxy itself is asked.
func proxied(requests ...string) visit { return ask(requests...).at(proxyAddress).bare() }

// viaProxy is an attempt whose legal form goes through the proxy too.
func viaProxy(name string, v visit, want, log string) attempt {
	return attempt{name: name, sent: v, want: want, log: log, legal: through(api+":443", legal), legalSaw: legalSaw}
}

// badRequest is a request to the proxy that it refuses for its form.
func badRequest(name string, v visit) attempt {
	return viaProxy(name, v, "400 closed", "deny proxy-request")
}

const (
	toApi    = api + ":443"
	toDenied = denied + ":443"
)

// A client of the explicit proxy, in a sandbox that is not ours, says once more
// which host it is for. CONNECT, SNI, Host, :authority and an absolute target
// agree, or nothing leaves.
var elsewheres = []attempt{
	viaProxy("CONNECT to a denied host", through(toDenied, ask(get(denied, "/v1/x"))), "403", "deny denied"),
	viaProxy("CONNECT to an unlisted host", through(unlisted+":443", ask(get(unlisted, "/v1/x"))), "403", "deny -"),
	viaProxy("CONNECT to another port", through(api+":8443", ask(get(api+":8443", "/v1/x"))), "403", "deny -"),
	viaProxy("CONNECT, SNI of a denied host", through(toApi, ask(get(denied, "/v1/x")).with(Handshake{Name: denied})), "403", "deny name"),
	viaProxy("CONNECT, SNI of a denied host, Host of the allowed one", through(toApi, ask(get(api, "/v1/x")).with(Handshake{Name: denied})), "403", "deny name"),
	viaProxy("CONNECT, SNI of another allowed host", through(toApi, ask(get(other, "/v1/x")).with(Handshake{Name: other})), "403", "deny name"),
	viaProxy("CONNECT to a denied host, SNI and Host of an allowed one", through(toDenied, ask(get(api, "/v1/x")).with(Handshake{Name: api})), "403", "deny name"),
	viaProxy("CONNECT, no SNI, Host of a denied host", through(toApi, ask(get(denied, "/v1/x")).with(Handshake{})), "421", "deny host"),
	viaProxy("CONNECT, Host of a denied host", through(toApi, ask(get(denied, "/v1/x"))), "421", "deny host"),
	viaProxy("CONNECT, Host of another allowed host", through(toApi, ask(get(other, "/v1/x"))), "421", "deny host"),
	viaProxy("CONNECT, Host with another port", through(toApi, ask(get(api+":8443", "/v1/x"))), "421", "deny host"),
	viaProxy("CONNECT, :authority of a denied host", through(toApi, stream(field{":authority", denied})), "421", "deny host"),
	viaProxy("CONNECT, :authority of another allowed host", through(toApi, stream(field{":authority", other})), "421", "deny host"),
	viaProxy("CONNECT, :authority and Host that differ", through(toApi, stream(field{"host", denied})), "reset", ""),
	viaProxy("CONNECT, :scheme http inside of TLS", through(toApi, stream(field{":scheme", "http"})), "421", "deny scheme"),
	viaProxy("CONNECT, an absolute target of a denied host", through(toApi, ask(get(denied, "https://denied.example.test/v1/x"))), "421", "deny host"),
	viaProxy("CONNECT, an absolute target of a denied host, Host of the allowed one", through(toApi, ask(get(api, "https://denied.example.test/v1/x"))), "421 closed", "deny request-form"),
	viaProxy("CONNECT, an absolute target of another scheme", through(toApi, ask(get(api, "http://api.example.test/v1/x"))), "421", "deny scheme"),
	viaProxy("CONNECT, an absolute target as if to a proxy, without TLS", through(other+":80", ask(get(denied, "http://denied.example.test/v1/x")).bare()), "421", "deny host"),
	viaProxy("CONNECT, Host of a denied host, without TLS", through(other+":80", ask(get(denied, "/v1/x")).bare()), "421", "deny host"),
	viaProxy("CONNECT, a credential without TLS", through(api+":80", ask(get(api, "/v1/x")).bare()), "403", "deny -"),
	viaProxy("CONNECT, bytes of another protocol", visit{to: toApi, plain: true, before: connect(toApi, login), steps: []Step{{Send: [][]byte{[]byte("SSH-2.0-OpenSSH_9.2\r\n")}}}}, toldBySSH, "deny api-keys"),
	{name: "CONNECT whose Host is a denied host", sent: visit{to: toApi, before: "CONNECT " + toApi + " HTTP/1.1\r\nHost: " + toDenied + "\r\n" + login + "\r\n\r\n",
		speak: HTTP1, steps: legal.steps}, want: "200", log: "allow api", saw: []string{legalSaw}, legal: through(api+":443", legal), legalSaw: legalSaw},

	viaProxy("CONNECT inside of CONNECT", through(toApi, ask(connect(toDenied))), "405", "deny nested-connect"),
	viaProxy("CONNECT inside of CONNECT, with the login", through(toApi, ask(connect(toDenied, login))), "405", "deny nested-connect"),
	viaProxy("CONNECT inside of CONNECT, without TLS", through(other+":80", ask(connect(toDenied, login)).bare()), "405", "deny nested-connect"),
	viaProxy("CONNECT inside of CONNECT, by HTTP/2", through(toApi, stream(field{":method", "CONNECT"}, field{":scheme", ""}, field{":path", ""}, field{":authority", toDenied})), "405", "deny nested-connect"),
	viaProxy("CONNECT to the proxy itself", through(proxyAddress, ask(connect(toDenied, login)).bare()), "403", "deny -"),
	viaProxy("CONNECT to the host's metrics", through("127.0.0.1:9464", ask(get("127.0.0.1:9464", "/metrics")).bare()), "403", "deny -"),
	viaProxy("CONNECT to the metadata address", through("169.254.169.254:80", ask(get("169.254.169.254", "/")).bare()), "403", "deny -"),
	viaProxy("CONNECT to an allowed host's address, with its SNI", through(upstreamAddress+":443", ask(get(api, "/v1/x")).with(Handshake{Name: api})), "403", "deny -"),
	viaProxy("CONNECT to an IPv4 address in IPv6", through("[::ffff:198.51.100.10]:443", ask(get(api, "/v1/x")).with(Handshake{Name: api})), "403", "deny -"),
	badRequest("CONNECT to an address in decimal", proxied(connect("3325256714:443", login))),
	badRequest("CONNECT to an address in hexadecimal", proxied(connect("0xc633640a:443", login))),
	badRequest("CONNECT to an address in octal", proxied(connect("0306.063.0144.012:443", login))),
	badRequest("CONNECT to a short address", proxied(connect("127.1:9464", login))),
	badRequest("CONNECT without a port", proxied(connect(api, login))),
	badRequest("CONNECT to port 65979", proxied(connect(api+":65979", login))), // 443 + 65536

	viaProxy("an absolute target of a denied host", proxied(get(denied, "http://denied.example.test/v1/x", login)), "403", "deny denied"),
	viaProxy("an absolute target with a credential, without TLS", proxied(get(api, "http://api.example.test/v1/x", login)), "403", "deny -"),
	badRequest("an absolute target of https", proxied(get(api, "https://api.example.test/v1/x", login))),
	badRequest("a target without a host", proxied(get(api, "/v1/x", login))),
	{name: "two absolute targets on one connection, the second denied", sent: proxied(get(other, "http://other.example.test/v1/x", login), get(denied, "http://denied.example.test/v1/x", login)),
		want: "200 403", log: "allow other, deny denied", saw: []string{"GET other.example.test /v1/x none"}, legal: through(api+":443", legal), legalSaw: legalSaw},
	{name: "its login inside of CONNECT", sent: through(toApi, ask(get(api, "/v1/x", login))), want: "200", log: "allow api", saw: []string{sawX},
		legal: through(api+":443", legal), legalSaw: legalSaw},
}

// A client that does not log in, or does so wrong, gets nothing but the question. One without
// a name has not claimed anything: there is no event.
var nobodies = []attempt{
	unknown("no login, CONNECT", connect(toApi), ""),
	unknown("no login, an absolute target", get(other, "http://other.example.test/v1/x"), ""),
	unknown("a wrong token", connect(toApi, basic("elsewhere:guessed")), "deny proxy-authentication"),
	unknown("the name alone", connect(toApi, basic("elsewhere")), "deny proxy-authentication"),
	unknown("an empty token", connect(toApi, basic("elsewhere:")), "deny proxy-authentication"),
	unknown("the name of a sandbox", connect(toApi, basic("agent:")), "deny proxy-authentication"),
	unknown("the token of another name", connect(toApi, "Proxy-Authorization: Basic FOREIGN"), "deny proxy-authentication"),
	unknown("the token as a bearer", connect(toApi, "Proxy-Authorization: Bearer TOKEN"), "deny proxy-authentication"),
	unknown("the login in another header", connect(toApi, "Authorization: Basic TOKEN"), ""),
	unknown("the login in the target", get(other, "http://elsewhere:guessed@other.example.test/v1/x"), ""),
	unknown("a wrong token for an absolute target", get(other, "http://other.example.test/v1/x", basic("elsewhere:guessed")), "deny proxy-authentication"),
	// Heads without a single reading are refused before anybody looks for a login
	// in them.
	unread("CONNECT with user information", connect("api.example.test@denied.example.test:443", login)),
	unread("CONNECT with a path", connect("denied.example.test:443/api.example.test", login)),
	unread("CONNECT percent-encoded", connect("denied%2eexample.test:443", login)),
	unread("CONNECT with a NUL", connect("api.example.test\x00.denied.example.test:443", login)),
	unread("CONNECT of an absolute target", "CONNECT https://api.example.test:443/ HTTP/1.1\r\nHost: api.example.test\r\n"+login+"\r\n\r\n"),
	unread("CONNECT with a body", connect(toApi, login, "Content-Length: 5")+"hello"),
	{name: "an absolute target of a denied host, Host of an allowed one", sent: proxied(get(other, "http://denied.example.test/v1/x", login)), want: "421 closed", log: "deny request-form"},
	{name: "an absolute target, Host of a denied host", sent: proxied(get(denied, "http://other.example.test/v1/x", login)), want: "421 closed", log: "deny request-form"},
	{name: "a wrong login before the right one", sent: proxied(connect(toApi, basic("elsewhere:guessed"), login)), want: "407 closed", log: "deny proxy-authentication"},
	{name: "another request behind a refused one", sent: proxied(connect(toApi), get(other, "http://other.example.test/v1/x", login)), want: "407 closed"},
}

func unknown(name, request, log string) attempt {
	return attempt{name: name, sent: proxied(request), want: "407 closed", log: log}
}

func unread(name, request string) attempt {
	return attempt{name: name, sent: proxied(request), want: "400 closed", log: "deny request-form"}
}

func basic(login string) string {
	return "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(login))
}

// keyed puts the token in its place.
func (r *rig) keyed(v visit) visit {
	replace := strings.NewReplacer(
		"TOKEN", base64.StdEncoding.EncodeToString([]byte("elsewhere:"+r.token)),
		"FOREIGN", base64.StdEncoding.EncodeToString([]byte("agent:"+r.token)))
	v.before = replace.Replace(v.before)
	steps := make([]Step, 0, len(v.steps))
	for _, s := range v.steps {
		var send [][]byte
		for _, b := range s.Send {
			send = append(send, []byte(replace.Replace(string(b))))
		}
		s.Send = send
		steps = append(steps, s)
	}
	v.steps = steps
	return v
}
