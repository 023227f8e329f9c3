package sallyport.testing

# Requests for tests, as the gateway reads them from the wire:
#
#   testing.get("https://api.example.com/x?page=2")
#   testing.post("https://api.example.com/x", {"headers": ["Content-Type"], "size": 100})
#   testing.from("demo", {"team": "support"}, testing.get("https://api.example.com/x"))
#   testing.connect("db.example.com", 5432, "other")
#   testing.lookup("api.example.com")
#
# and what comes of them:
#
#   testing.decide(testing.get("https://api.example.com/x")).action == "deny"
#
# What the gateway refuses before it asks for a decision is undefined here: user
# information in a URL, a path that can be read in two ways, a host that is none.

get(url) := request("GET", url, {})

head(url) := request("HEAD", url, {})

delete(url) := request("DELETE", url, {})

post(url, options) := request("POST", url, options)

put(url, options) := request("PUT", url, options)

patch(url, options) := request("PATCH", url, options)

# request is one of any method. Options are all optional: headers, an array of
# names or an object whose keys are names; size, the Content-Length in bytes; body,
# the parsed view of it that a rule declares.
request(method, url, options) := {
	"phase": "request",
	"protocol": protocols[at.scheme],
	"sandbox": defaults.sandbox,
	"destination": {"host": at.host, "port": at.port},
	"request": object.union(
		{
			"method": method,
			"scheme": at.scheme,
			"path": at.path,
			"query_keys": at.query_keys,
			"headers": header_names(object.get(options, "headers", [])),
			"size": object.get(options, "size", -1),
		},
		object.filter(options, ["body"]),
	),
} if {
	regex.match(`^[A-Z0-9!#$%&'*+.^_\x60|~-]+$`, method)
	at := parse(url)
}

# connect is the opening of a connection: protocol is tls, http or other.
connect(host, port, protocol) := {
	"phase": "connect",
	"protocol": protocol,
	"sandbox": defaults.sandbox,
	"destination": {"host": canonical(host), "port": port},
} if {
	protocol in {"tls", "http", "other"}
}

# lookup is the question for a name's address.
lookup(host) := {
	"phase": "dns",
	"sandbox": defaults.sandbox,
	"destination": {"host": domain(host)},
}

# from says who asks: a sandbox's name and its tags.
from(name, tags, given) := object.union(
	object.remove(given, ["sandbox"]),
	{"sandbox": object.union(object.remove(defaults.sandbox, ["tags"]), {"name": name, "tags": tags})},
)

# decide is what becomes of an input under the sallyport.yaml that the tests run
# with: data.sallyport.decision, after the floor, with the limits that it falls
# under. It is undefined where there is none, as under plain `opa test`.
decide(given) := made if {
	documented
	asked := complete(given)
	decision := data.sallyport.decision with input as asked
	made := settled(asked, decision) with input as asked
}

# decisions are those on each of an array of inputs. Where there is no
# sallyport.yaml there are none, so that what is said of every one of them holds
# under plain `opa test` too.
decisions(list) := made if {
	documented
	made := [decide(given) | some given in list]
	count(made) == count(list)
}

decisions(_) := [] if not documented

documented if data.sallyport.index

protocols := {"https": "tls", "http": "http"}

default_ports := {"https": 443, "http": 80}

# parse takes a URL apart. What follows a # is not sent.
parse(url) := {
	"scheme": scheme,
	"host": canonical(host),
	"port": port_number(port, scheme),
	"path": normalised(path),
	"query_keys": query_keys(query),
} if {
	not regex.match(`[\x00-\x20\x7f]`, url)
	some [_, mixed, host, port, path, query] in regex.find_all_string_submatch_n(
		`^(?i:(https?))://(\[[^\]/?#@]*\]|[^:/?#@\[\]]*)(:[0-9]+)?(/[^?#]*)?(?:\?([^#]*))?(?:#.*)?$`,
		url,
		1,
	)
	scheme := lower(mixed)
}

port_number("", scheme) := default_ports[scheme]

port_number(port, _) := number if {
	regex.match(`^:0*[1-9][0-9]{0,4}$`, port)
	number := to_number(trim_left(port, ":0"))
	number < 65536
}

# canonical is a host as policies compare it: a name or an address.
canonical(host) := domain(host)

canonical(host) := address if {
	address := trim_suffix(host, ".")
	regex.match(`^((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])(\.|$)){4}$`, address)
	not endswith(address, ".")
}

canonical(host) := address if {
	contains(host, ":")
	prefix := sprintf("%s/128", [trim_suffix(trim_prefix(lower(host), "["), "]")])
	net.cidr_is_valid(prefix)

	# An IPv4 address inside of one of IPv6 is the IPv4 address.
	some merged in net.cidr_merge([prefix])
	address := split(merged, "/")[0]
}

# domain is a name in lower case without its trailing dot. One whose last label is a
# number could be read as an address.
domain(host) := name if {
	name := trim_suffix(lower(host), ".")
	count(name) <= 253
	regex.match(`^[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*$`, name)
	not regex.match(`(^|\.)([0-9]+|0x[0-9a-f]*)$`, name)
}

# normalised is a path as rules are compared with it: percent-decoded, runs of
# slashes made one.
normalised("") := "/"

normalised(path) := plain if {
	path != ""
	count(path) <= 8192
	well_escaped(path)
	not regex.match(`(?i)%2f`, path)

	# In a path, a plus sign is one.
	plain := regex.replace(urlquery.decode(replace(path, "+", "%2B")), `//+`, "/")
	not regex.match(`[\x00-\x1f\x7f\\;\x{FFFD}]`, plain)
	not regex.match(`%[0-9A-Fa-f]{2}`, plain)
	not regex.match(`/\.\.?(/|$)`, plain)
}

well_escaped(text) if regex.match(`^([^%]|%[0-9A-Fa-f]{2})*$`, text)

# query_keys are the decoded names, once each. Servers disagree about whether a
# semicolon separates, so it does.
query_keys(query) := sort({unescaped(key) |
	some pair in regex.split(`[&;]`, query)
	pair != ""
	key := split(pair, "=")[0]
})

unescaped(text) := urlquery.decode(text) if well_escaped(text)

unescaped(text) := text if not well_escaped(text)

header_names(headers) := sort({canonical_header(name) | some name in headers}) if is_array(headers)

header_names(headers) := sort({canonical_header(name) | some name, _ in headers}) if is_object(headers)

canonical_header(name) := concat("-", [capitalised(part) | some part in split(name, "-")])

capitalised(part) := concat("", [upper(substring(part, 0, 1)), lower(substring(part, 1, -1))])
