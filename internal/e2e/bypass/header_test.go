package bypass

// with is a GET of /v1/x with these headers.
func with(headers ...string) visit { return ask(get(api, "/v1/x", headers...)) }

// override is a header by which a server can take the request for another one
// than policy saw.
func override(header string) attempt {
	return attempt{name: header, sent: with(header), want: "403", log: "deny override-header"}
}

// own is a credential of the sandbox's own, which never arrives: an account of
// somebody else's at an allowed host is a way out.
func own(name string, v visit) attempt {
	return attempt{name: name, sent: v, want: "200", log: "allow api", saw: []string{sawX}}
}

var headers = []attempt{
	override("X-HTTP-Method-Override: DELETE"),
	override("X-HTTP-Method: DELETE"),
	override("x-method-override: DELETE"),
	override("X_HTTP_Method_Override: DELETE"),
	override("X-Original-URL: /admin"),
	override("X_Original_Url: /admin"),
	override("X-Original-URI: /admin"),
	override("X-Rewrite-URL: /admin"),
	override("X-Forwarded-Path: /admin"),
	override("X-Forwarded-Prefix: /admin"),
	override("X-Forwarded-Host: denied.example.test"),
	override("X-Original-Host: denied.example.test"),
	override("X-Host: denied.example.test"),
	override("X-HTTP-Host-Override: denied.example.test"),
	override("Forwarded: host=denied.example.test"),
	override("X-Envoy-Original-Path: /admin"),
	override("X-Real-URL: /admin"),
	override("Destination: https://api.example.test/v1/admin/keys"),
	override("X-Amz-Copy-Source: /v1/admin/keys"),
	override("Impersonate-User: root"),
	override("Sudo: root"),
	override("es-security-runas-user: root"),
	override("X_Remote_User: root"),
	override("X-WEBAUTH-USER: root"),
	{name: "an override that Connection names", sent: with("Connection: X-Original-Url", "X-Original-Url: /admin"), want: "403", log: "deny override-header"},
	{name: "an override in the trailers", sent: ask("POST /v1/x HTTP/1.1\r\nHost: api.example.test\r\nTransfer-Encoding: chunked\r\nTrailer: X-Original-Url\r\n\r\n0\r\nX-Original-Url: /admin\r\n\r\n"),
		want: "403", log: "deny override-header"},
	{name: "a credential in the trailers", sent: ask("POST /v1/x HTTP/1.1\r\nHost: api.example.test\r\nTransfer-Encoding: chunked\r\nTrailer: Authorization\r\n\r\n0\r\nAuthorization: Bearer mine\r\n\r\n"),
		want: "400", log: "deny trailer"},
	{name: "a credential in trailers that were not announced", sent: ask("POST /v1/x HTTP/1.1\r\nHost: api.example.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Api-Key: mine\r\n\r\n"),
		want: "200", log: "allow api", saw: []string{"POST api.example.test /v1/x ours"}},

	own("Authorization of its own", with("Authorization: Bearer mine")),
	own("two Authorizations of its own", with("Authorization: Bearer mine", "authorization: Basic bWluZTptaW5l")),
	own("Connection: Authorization", with("Connection: Authorization")),
	{name: "Connection: Authorization, and one of its own", sent: with("Connection: close, Authorization", "Authorization: Bearer mine"), want: "400", log: "deny connection"},
	{name: "Connection that takes a header out after the policy", sent: with("Connection: X-Ticket", "X-Ticket: 1"), want: "400", log: "deny connection"},
	own("Proxy-Connection: Authorization", with("Proxy-Connection: Authorization")),
	own("Proxy-Authorization of its own", with("Proxy-Authorization: Bearer mine")),
	own("a cookie of its own", with("Cookie: session=mine")),
	own("an API key of its own", with("X-Api-Key: mine")),
	own("an API key with underscores", with("X_Api_Key: mine")),
	own("a token of its own", with("X-Auth-Token: mine")),
	{name: "a key of its own in the query", sent: target("/v1/x?api_key=mine&a=b"), want: "200", log: "allow api", saw: []string{"GET api.example.test /v1/x?a=b ours"}},
	{name: "a key of its own in the query, encoded", sent: target("/v1/x?access%5Ftoken=mine&a=b"), want: "200", log: "allow api", saw: []string{"GET api.example.test /v1/x?a=b ours"}},
	{name: "a key of its own behind a semicolon", sent: target("/v1/x?a=b;token=mine"), want: "200", log: "allow api", saw: []string{"GET api.example.test /v1/x?a=b ours"}},
	{name: "a login in the target", sent: target("https://mine:mine@api.example.test/v1/x"), want: "400", log: "deny userinfo"},

	slice("the whole", "bytes=0-"),
	slice("the scheme and some", "bytes=0-12"),
	slice("eight bytes", "bytes=7-14"),
	slice("the end", "bytes=-8"),
	slice("all but one byte", "bytes=8-"),
	slice("many", "bytes=7-10,11-14,15-18"),
	{name: "a slice of an echoed credential, by If-Range", sent: ask(get(api, "/v1/echo", "Range: bytes=8-", `If-Range: "x"`)), want: "200", log: "allow api",
		saw: []string{"GET api.example.test /v1/echo ours"}},
}

// slice asks for a part of an answer in which the credential comes back: the
// upstream does not see that, and what it sends is searched whole.
func slice(name, of string) attempt {
	return attempt{name: "a slice of an echoed credential: " + name, sent: ask(get(api, "/v1/echo", "Range: "+of)), want: "200", log: "allow api",
		saw: []string{"GET api.example.test /v1/echo ours"},
		// Where nothing is injected there is nothing to search for.
		legal: ask(get(other, "/v1/legal", "Range: "+of)).at(other + ":443"), legalSaw: "GET other.example.test /v1/legal none Range:" + of}
}
