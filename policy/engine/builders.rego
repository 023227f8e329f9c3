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
# A path with encoded slashes is decided about once for each way to read it. get
# and the others make the first, as it was sent; testing.readings makes all, and
# testing.decide asks for all, of which the strictest decision counts.
#
#   every reading in testing.readings(testing.get("https://registry.npmjs.org/@acme%2fapp")) {
#     …
#   }
#
# What the gateway refuses before it asks for a decision is undefined here: user
# information in a URL, a path with dot segments, a host that is none.

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
			"raw_path": at.path,
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
# under; of several readings the strictest. It is undefined where there is none, as
# under plain `opa test`.
decide(given) := strictest[2] if {
	documented
	list := readings(given)
	made := [answer |
		some reading in list
		asked := complete(reading)
		decision := data.sallyport.decision with input as asked
		answer := settled(asked, explained(asked, decision)) with input as asked
	]
	count(made) == count(list)
	strictest := min([[strictness[answer.action], i, answer] | some i, answer in made])
}

# explained is a decision as it is shown: {action, type, rule, reason, inject}.
explained(given, decision) := object.union(shown(given, decision), {
	"action": decision.action,
	"inject": object.get(decision, "inject", set()),
})

shown(_, decision) := {
	"type": decision.rule.type,
	"rule": decision.rule.rule,
	"reason": concat(" ", [decision.why, decision.rule.rule]),
}

shown(_, decision) := object.union(object.filter(decision, ["error"]), {
	"type": "rego",
	"rule": decision.team.rule,
	"reason": object.get(decision.team, "reason", object.get(decision, "why", "")),
})

shown(given, decision) := {"type": "", "rule": "", "reason": concat(" ", [decision.why, what(given)])} if {
	not decision.rule
	not decision.team
}

what(given) := given.destination.host if given.phase == "dns"

what(given) := sprintf("%s to %s:%d", [given.protocol, given.destination.host, given.destination.port]) if {
	given.phase == "connect"
}

what(given) := sprintf("%s at %s:%d", [line(given), given.destination.host, given.destination.port]) if {
	given.phase == "request"
}

strictness := {"deny": 1, "approve": 2, "allow": 3, "tunnel": 3}

# readings lists the input once for each reading of its path, as it was sent first. A
# server decodes a segment as a whole or not at all, and some end the path at a "?" or a
# "#" that was encoded: those readings are last.
readings(given) := [given] if not several_readings(object.get(given, ["request", "path"], ""))

readings(given) := list if {
	several_readings(given.request.path)
	list := [object.union(given, {"request": {"path": path, "raw_path": given.request.path}}) |
		some path in array.concat(path_spellings(given.request.path), path_cut(given.request.path))
	]
}

several_readings(path) if contains(path, "%2F")

several_readings(path) if regex.match(`[?#]`, path)

path_cut(path) := path_spellings(regex.split(`[?#]`, path)[0]) if regex.match(`[?#]`, path)

path_cut(path) := [] if not regex.match(`[?#]`, path)

path_spellings(path) := list if {
	segments := split(path, "/")
	encoded := [i | some i, segment in segments; contains(segment, "%2F")]
	list := [concat("/", [spelling(segment, i in decoded) | some i, segment in segments]) |
		some choice in numbers.range(0, powers[count(encoded)] - 1)
		decoded := {i | some n, i in encoded; floor(choice / powers[n]) % 2 == 1}
	]
}

# powers are those of two: a path has encoded slashes in three segments at most.
powers := [1, 2, 4, 8]

spelling(segment, true) := replace(segment, "%2F", "/")

spelling(segment, false) := segment

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

# normalised is a path as rules are compared with it: percent-decoded but for
# encoded slashes, runs of slashes made one.
normalised("") := "/"

normalised(path) := plain if {
	path != ""
	not startswith(path, "//")
	count(path) <= 8192
	well_escaped(path)
	parts := [unslashed(part) | some part in regex.split(`%2[Ff]`, path)]
	not beside_slash(parts)
	decoded := concat("/", parts)
	not regex.match(`[\x00-\x1f\x7f\\;\x{FFFD}]`, decoded)
	not regex.match(`%[0-9A-Fa-f]{2}`, decoded)
	not regex.match(`/\.\.?(/|$)`, decoded)
	not folded(decoded)
	plain := concat("%2F", parts)
	count([segment | some segment in split(plain, "/"); contains(segment, "%2F")]) <= 3
}

# folded tells of a path with another number of segments, a dot segment or an encoding to a
# server that trims white space, cuts, leaves out what is not seen or takes full-width
# characters for those of ASCII.
folded(path) if regex.match(`[\x{ff0f}\x{2044}\x{2215}\x{ff3c}\x{fe68}\x{2216}\x{a5}\x{20a9}]`, path)

folded(path) if regex.match(sprintf(`/[%s]+(/|$)`, [unseen_characters]), path)

folded(path) if {
	dot := `[.\x{ff0e}\x{2024}\x{fe52}\x{3002}\x{ff61}]`
	left_out := sprintf(`[+\x{ff0b}%s]*`, [unseen_characters])
	over := `(/|[?#;\x{ff1f}\x{ff03}\x{ff1b}\x{fe56}\x{fe5f}\x{fe54}\x{37e}]|$)`
	regex.match(concat("", ["/", left_out, "(", dot, "|", dot, left_out, dot, `|\x{2025})`, left_out, over]), path)
}

folded(path) if {
	digit := `[0-9A-Fa-f\x{ff10}-\x{ff19}\x{ff21}-\x{ff26}\x{ff41}-\x{ff46}]`
	regex.match(concat("", [`[\x{ff05}\x{fe6a}]`, digit, digit]), path)
}

# unseen_characters are white space and what is not seen, in a class of RE2.
unseen_characters := concat("", [
	`\s\p{Z}\p{Cf}\x{80}-\x{9f}\x{34f}\x{115f}\x{1160}\x{17b4}\x{17b5}\x{180b}-\x{180d}\x{180f}`,
	`\x{2065}\x{3164}\x{fe00}-\x{fe0f}\x{ffa0}\x{fff0}-\x{fff8}\x{e0000}-\x{e0fff}`,
])

# In a path, a plus sign is one.
unslashed(part) := regex.replace(urlquery.decode(replace(part, "+", "%2B")), `//+`, "/")

# An encoded slash is beside no slash, encoded or not.
beside_slash(parts) if {
	some i, part in parts
	i > 0
	startswith(part, "/")
}

beside_slash(parts) if {
	some i, part in parts
	i < count(parts) - 1
	endswith(part, "/")
}

beside_slash(parts) if {
	some i, part in parts
	i > 0
	i < count(parts) - 1
	part == ""
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
