package bypass

// target is a GET of this target, as it stands.
func target(s string) visit { return ask(get(api, s)) }

// ambiguous is a path that two servers could read differently.
func ambiguous(name, path string) attempt {
	return attempt{name: name, sent: target(path), want: "400", log: "deny path"}
}

// outside is a path of which some reading is not below /v1/.
func outside(name, path string) attempt {
	return attempt{name: name, sent: target(path), want: "403", log: "deny api"}
}

// kept is a path of which some reading is what a rule denies.
func kept(name, path string) attempt {
	return attempt{name: name, sent: target(path), want: "403", log: "deny api-keys"}
}

// The sandbox may reach what is below /v1/, but for what api-keys denies. A path
// that some upstream could take for another is refused, not guessed at; one with
// encoded slashes has to be allowed in every reading.
var paths = []attempt{
	outside("another path", "/admin"),
	outside("another path in the query's clothes", "/?/v1/x"),
	outside("the prefix in other case", "/V1/x"),
	outside("the prefix without its slash", "/v1"),
	outside("the prefix as part of a name", "/v1x/y"),
	outside("another path, encoded", "/%61dmin"),
	ambiguous("a dot segment", "/v1/./x"),
	ambiguous("two dots", "/v1/../admin"),
	ambiguous("two dots at the end", "/v1/.."),
	ambiguous("two dots behind doubled slashes", "/v1//../admin"),
	ambiguous("two dots that lead back", "/admin/../v1/x"),
	ambiguous("two dots beyond the root", "/../../v1/x"),
	ambiguous("%2e%2e", "/v1/%2e%2e/admin"),
	ambiguous("%2E.", "/v1/%2E./admin"),
	ambiguous(".%2e at the end", "/v1/.%2e"),
	ambiguous("%2e%2e%2f", "/v1/%2e%2e%2fadmin"),
	outside("an encoded slash in the prefix's place", "/v1%2fx"),
	outside("an encoded slash that leaves the prefix", "/%76%31%2Fx"),
	outside("an encoded slash in upper case", "/v1%2Fx"),
	outside("encoded slashes in mixed case", "/v1%2fx%2Fy"),
	kept("an encoded slash in the midst of a denied prefix", "/v1/admin%2fkeys"),
	kept("an encoded slash behind a denied prefix", "/v1/admin/a%2fb"),
	kept("encoded slashes in mixed case in a denied prefix", "/v1/admin%2Fkeys%2fx"),
	kept("a denied name in one segment decoded and not the other", "/v1/p/a%2fb/f/secret%2fx"),
	ambiguous("an encoded slash to climb out", "/v1/x%2f.."),
	ambiguous("encoded slashes to climb out", "/v1/x%2f..%2f..%2fadmin%2f"),
	ambiguous("two dots before an encoded slash", "/v1/..%2Fadmin"),
	ambiguous("encoded dots beside an encoded slash", "/v1/x%2f%2e%2e%2fadmin"),
	ambiguous("an encoded slash beside a slash", "/v1/%2fadmin"),
	ambiguous("an encoded slash for a host", "/%2fdenied.example.test/v1/x"),
	ambiguous("two encoded slashes", "/v1/x%2f%2Fadmin"),
	ambiguous("an encoded slash and an encoded backslash", "/v1/x%2fy%5cz"),
	ambiguous("an encoded slash and one encoded twice", "/v1/x%2fy%252fz"),
	ambiguous("an encoded slash, in parts", "/v1/x%25%32%66y"),
	ambiguous("encoded slashes in four segments", "/v1/a%2fb/a%2fb/a%2fb/a%2fb"),
	ambiguous("encoded slashes around two dots", "/v1/x%2f..%2f..%2fadmin"),
	ambiguous("%252e%252e, encoded twice", "/v1/%252e%252e/admin"),
	ambiguous("%252f, encoded twice", "/v1/..%252fadmin"),
	ambiguous("an overlong dot", "/v1/%c0%ae%c0%ae/admin"),
	ambiguous("an overlong slash", "/v1/..%c0%afadmin"),
	ambiguous("a backslash", `/v1/..\admin`),
	ambiguous("an encoded backslash", "/v1/..%5cadmin"),
	ambiguous("a semicolon behind two dots", "/v1/..;/admin"),
	ambiguous("a semicolon and parameters", "/v1/x;a=b"),
	ambiguous("a semicolon before the path", "/;/v1/x"),
	ambiguous("an encoded semicolon", "/v1/..%3b/admin"),
	ambiguous("an encoded NUL", "/v1/x%00/../../admin"),
	ambiguous("an encoded line break", "/v1/x%0d%0aX-Smuggled:%20y"),
	{name: "%u002e", sent: target("/v1/%u002e%u002e/admin"), want: "400 closed", log: "deny request-form"},
	{name: "half an encoding", sent: target("/v1/x%"), want: "400 closed", log: "deny request-form"},
	{name: "a fragment", sent: target("/v1/x#/../../admin"), want: "400 closed", log: "deny request-form"},
	{name: "no slash", sent: target("v1/x"), want: "400 closed", log: "deny request-form"},
	{name: "an asterisk", sent: ask("OPTIONS * HTTP/1.1\r\nHost: api.example.test\r\n\r\n"), want: "400", log: "deny request-target"},
	{name: "another method", sent: ask("DELETE /v1/x HTTP/1.1\r\nHost: api.example.test\r\n\r\n"), want: "403", log: "deny api"},
	{name: "the method in other case", sent: ask("get /v1/x HTTP/1.1\r\nHost: api.example.test\r\n\r\n"), want: "403", log: "deny -"},
	{name: "a method that is no token", sent: ask("GET{} /v1/x HTTP/1.1\r\nHost: api.example.test\r\n\r\n"), want: "400 closed", log: "deny request-form"},
	{name: "TRACE", sent: ask("TRACE /v1/x HTTP/1.1\r\nHost: api.example.test\r\n\r\n"), want: "405", log: "deny trace"},

	// A path with one reading passes, in its one spelling.
	{name: "doubled slashes below the prefix", sent: target("/v1//x"), want: "200", log: "allow api", saw: []string{"GET api.example.test /v1/x ours"}},
	{name: "an encoded letter", sent: target("/v1/%78"), want: "200", log: "allow api", saw: []string{"GET api.example.test /v1/x ours"}},
	{name: "an encoded slash in a name", sent: target("/v1/@scope%2fname"), want: "200", log: "allow api", saw: []string{"GET api.example.test /v1/@scope%2Fname ours"}},
	{name: "an encoded slash in a name, in upper case", sent: target("/v1/p/a%2Fb/f/c%2Fd"), want: "200", log: "allow api", saw: []string{"GET api.example.test /v1/p/a%2Fb/f/c%2Fd ours"}},
	{name: "two dots in the query", sent: target("/v1/x?../../admin"), want: "200", log: "allow api", saw: []string{"GET api.example.test /v1/x?../../admin ours"}},
	{name: "three dots", sent: target("/v1/..."), want: "200", log: "allow api", saw: []string{"GET api.example.test /v1/... ours"}},
}
