package sallyport.team.testing_test

import data.sallyport.testing

sandbox := {"name": "test", "id": "test", "session": "test", "tags": {}}

test_url if {
	given := testing.get("HTTPS://API.Example.COM.:8443/a%20b//c+d?b=1&a&a;%63=2#x")
	given.phase == "request"
	given.protocol == "tls"
	given.destination == {"host": "api.example.com", "port": 8443}
	given.request == {
		"method": "GET",
		"scheme": "https",
		"path": "/a b/c+d",
		"raw_path": "/a b/c+d",
		"query_keys": ["a", "b", "c"],
		"headers": [],
		"size": -1,
	}
}

test_defaults if {
	given := testing.head("http://example.com")
	given.protocol == "http"
	given.destination.port == 80
	given.request.path == "/"
	given.request.query_keys == []
	given.sandbox == sandbox
}

test_options if {
	given := testing.put("https://example.com/", {"headers": ["x-b", "CONTENT-type"], "size": 7, "body": {"json": {"a": 1}}})
	given.request.headers == ["Content-Type", "X-B"]
	given.request.size == 7
	given.request.body == {"json": {"a": 1}}
	testing.patch("https://example.com/", {"headers": {"accept": "x"}}).request.headers == ["Accept"]
	not testing.post("https://example.com/", {}).request.body
	testing.delete("https://example.com/").request.method == "DELETE"
}

test_addresses if {
	testing.get("https://203.0.113.1/").destination.host == "203.0.113.1"
	testing.get("https://[2001:DB8:0::1]:8443/").destination == {"host": "2001:db8::1", "port": 8443}
	testing.connect("2001:db8::1", 22, "other").destination == {"host": "2001:db8::1", "port": 22}
}

test_what_the_gateway_refuses if {
	every url in [
		"https://user@example.com/",
		"ftp://example.com/",
		"example.com/",
		"https://example.com:0/",
		"https://example.com:65536/",
		"https://example.com:x/",
		"https://127.1/",
		"https://0x7f000001/",
		"https://256.1.1.1/",
		"https://exa mple.com/",
		"https://ex%61mple.com/",
		"https://[::1/",
		"https://[zz::1]/",
		"https://example..com/",
		"https://example.com/a/../b",
		"https://example.com/a/%2e%2e",
		"https://example.com/a%2F%2Fb",
		"https://example.com/a/%2fb",
		"https://example.com/a%2f/b",
		"https://example.com/%2Fa",
		"https://example.com/a%2F..%2Fb",
		"https://example.com/a%252Fb",
		"https://example.com/a%2Fb/a%2Fb/a%2Fb/a%2Fb",
		"https://example.com/a%5cb",
		"https://example.com/a;b",
		"https://example.com/%",
		"https://example.com/%2541",
		"https://example.com/%00",
		"https://example.com/%ff",
	] {
		not made(url)
	}
	not testing.request("get", "https://example.com/", {})
	not testing.lookup("203.0.113.1")
	not testing.connect("example.com", 443, "quic")
}

made(url) if testing.get(url)

test_readings if {
	plain := testing.get("https://example.com/a/b")
	testing.readings(plain) == [plain]
	testing.readings(testing.lookup("example.com")) == [testing.lookup("example.com")]
	encoded := testing.get("https://example.com/a%2fb//c/d%2Fe%2Ff")
	encoded.request.path == "/a%2Fb/c/d%2Fe%2Ff"
	named := testing.get("https://example.com/a%2fb%3fc")
	[r.request.path | some r in testing.readings(named)] == ["/a%2Fb?c", "/a/b?c", "/a%2Fb", "/a/b"]
	[r.request.path | some r in testing.readings(encoded)] == ["/a%2Fb/c/d%2Fe%2Ff", "/a/b/c/d%2Fe%2Ff", "/a%2Fb/c/d/e/f", "/a/b/c/d/e/f"]
	{r.request.raw_path | some r in testing.readings(encoded)} == {"/a%2Fb/c/d%2Fe%2Ff"}
}

test_decide_readings if {
	testing.decide(testing.get("https://api.example.com/v1/x%2Fy")).action == "allow"
	testing.decide(testing.get("https://api.example.com/v1%2Fx")).action == "deny"
}

test_other_phases if {
	testing.connect("Example.com", 443, "tls") == {
		"phase": "connect",
		"protocol": "tls",
		"sandbox": sandbox,
		"destination": {"host": "example.com", "port": 443},
	}
	testing.lookup("example.com.") == {
		"phase": "dns",
		"sandbox": sandbox,
		"destination": {"host": "example.com"},
	}
}

test_from if {
	given := testing.from("a", {"team": "x"}, testing.lookup("example.com"))
	given.sandbox == {"name": "a", "id": "test", "session": "test", "tags": {"team": "x"}}
	testing.from("b", {}, given).sandbox.tags == {}
}

test_decide if {
	allowed := testing.decide(testing.get("https://api.example.com/v1/x"))
	allowed.action == "allow"
	allowed.rule == "api"
	made := testing.decisions([testing.get("https://api.example.com/v2")])
	[d.action | some d in made] == ["deny"]
}

# A hand-written input is completed.
test_complete if {
	given := testing.complete({"request": {"path": "/v1/x"}})
	given.destination == {"host": "api.example.com", "port": 443}
	given.rules == {"allow": [{"rule": "api", "type": "egress"}]}
	testing.decide({"request": {"path": "/v1/x"}}).rule == "api"
}

test_decide_says_what_no_rule_allows if {
	every pair in [
		[testing.get("https://api.example.com/x"), "no rule allows GET /x at api.example.com:443"],
		[testing.connect("api.example.com", 444, "other"), "no rule allows other to api.example.com:444"],
		[testing.lookup("b.example.com"), "no rule allows b.example.com"],
	] {
		testing.decide(pair[0]).reason == pair[1]
	}
}

# The floor is the gateway's own: forks have no credential, and some headers are refused.
test_floor if {
	key := testing.get("https://key.example.com/")
	testing.decide(key).inject == {{"credential": "key", "rule": "key"}}
	every given in [
		testing.from("a", {"sallyport.fork": "true"}, key),
		testing.post("https://key.example.com/", {"headers": ["X-Http-Method-Override"]}),
	] {
		d := testing.decide(given)
		d.action == "deny"
		d.type == "floor"
		d.inject == set()
	}
}

# A rule that has to see a body denies a request without it.
test_body if {
	blind := testing.decide(testing.post("https://body.example.com/", {"size": 5}))
	blind.action == "deny"
	blind.rule == "body"
	contains(blind.reason, "give the test's request the body")
	testing.decide(testing.post("https://body.example.com/", {"size": 5, "body": {"json": null}})).action == "allow"
	testing.decide(testing.post("https://body.example.com/", {"size": 5000, "body": {"json": {}}})).action == "deny"
}
