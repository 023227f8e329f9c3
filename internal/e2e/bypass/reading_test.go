package bypass

// passes is a target that leaves as another spelling of itself.
func passes(name, path, sent string) attempt {
	return attempt{name: name, sent: target(path), want: "200", log: "allow api", saw: []string{"GET api.example.test " + sent + " ours"}}
}

// Paths that one server takes for the one that is allowed, and another for one that is not:
// see policy/urlpath/testdata/servers.yaml. The path that leaves is the one that was decided
// about.
var readings = []attempt{
	ambiguous("two slashes before what may pass as a host", "//v1/admin/keys"),
	ambiguous("two slashes and the allowed host", "//api.example.test/admin"),
	ambiguous("two slashes and a login", "//v1@denied.example.test/v1/x"),
	ambiguous("three slashes", "///v1/x"),
	ambiguous("slashes alone", "//"),
	ambiguous("two slashes behind a host", "https://api.example.test//v1/x"),
	refused("two slashes, by HTTP/2", "400", "deny path", field{":path", "//v1/admin/keys"}),
	refused("two dots and a space, by HTTP/2", "400", "deny path", field{":path", "/v1/..%20/admin"}),
	ambiguous("two dots and a space", "/v1/..%20/admin"),
	ambiguous("a space and two dots", "/v1/%20../admin"),
	ambiguous("two dots and a plus sign", "/v1/..+/admin"),
	ambiguous("two dots and a question mark", "/v1/..%3f/admin"),
	ambiguous("two dots and a number sign", "/v1/..%23/admin"),
	ambiguous("two dots and a soft hyphen", "/v1/..%c2%ad/admin"),
	ambiguous("a zero-width space between two dots", "/v1/.%e2%80%8b./admin"),
	ambiguous("full-width dots", "/v1/%ef%bc%8e%ef%bc%8e/admin"),
	ambiguous("two dots in one character", "/v1/%e2%80%a5/admin"),
	ambiguous("a full-width slash", "/v1/x%ef%bc%8fadmin"),
	ambiguous("a full-width backslash", "/v1/..%ef%bc%bcadmin"),
	ambiguous("a yen sign, which is a backslash on Windows", "/v1/..%c2%a5admin"),
	ambiguous("a full-width percent sign", "/v1/%ef%bc%852e%ef%bc%852e/admin"),
	ambiguous("a segment of white space", "/v1/%20/x"),
	kept("a denied path before a question mark", "/v1/p/x/f/secret/k%3f/y"),
	outside("what is allowed only behind a question mark", "/%3f/v1/x"),
	kept("a denied path in other case", "/v1/ADMIN/keys"),
	kept("a denied path with a dot behind a name", "/v1/admin./keys"),
	kept("a denied path with a space behind a name", "/v1/admin%20/keys"),
	kept("a denied path with a full-width letter", "/v1/%ef%bd%81dmin/keys"),
	kept("a denied path and a slash", "/v1/p/x/f/secret/k/"),
	passes("doubled slashes", "/v1//x", "/v1/x"),
	passes("an encoded letter, and hexadecimal digits in lower case", "/v1/%78%e2%82%ac", "/v1/x%E2%82%AC"),
	passes("a plus sign, encoded and not", "/v1/c%2b+", "/v1/c%2B+"),
	passes("an encoded question mark", "/v1/x%3fy", "/v1/x%3Fy"),
}
