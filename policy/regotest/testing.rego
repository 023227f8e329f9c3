# METADATA
# title: Requests and decisions for tests
# description: |
#   The package that a team's tests import. docs/policy/test.md describes its functions.
#
#   The work is done by two built-in functions that only `sallyport policy test` has. They run
#   the Go code that the gateway runs. Under plain `opa test` they are undefined, so a test that
#   needs them fails there.
#
#     sallyport.inputs(parts)            the complete inputs, one for each reading of the path
#     sallyport.decided(parts, answers)  the decision that is enforced
package sallyport.testing

get(url) := request("GET", url, {})

head(url) := request("HEAD", url, {})

delete(url) := request("DELETE", url, {})

post(url, options) := request("POST", url, options)

put(url, options) := request("PUT", url, options)

patch(url, options) := request("PATCH", url, options)

# A request of any method. The options headers, size and body may be left out.
request(method, url, options) := read({"request": object.union(
	object.filter(options, ["headers", "size", "body"]),
	{"method": method, "url": url},
)})

# The opening of a connection. The protocol is tls, http or other.
connect(host, port, protocol) := read({
	"phase": "connect",
	"protocol": protocol,
	"destination": {"host": host, "port": port},
})

# The lookup of a name.
lookup(host) := read({"phase": "dns", "destination": {"host": host}})

# The same input from another sandbox.
from(name, tags, given) := object.union(
	object.remove(given, ["sandbox"]),
	{"sandbox": {"name": name, "id": "test", "session": "test", "tags": tags}},
)

# An input from parts of one, with input.rules.
complete(parts) := sallyport.inputs(parts)[0]

read(parts) := object.remove(complete(parts), ["rules"])

# The input once for each reading of its path. The first is the path as it was sent.
readings(given) := [object.remove(input_read, ["rules"]) | some input_read in sallyport.inputs(given)]

# The decision that is enforced under sallyport.yaml. The strictest reading of the path counts.
decide(given) := sallyport.decided(given, answers) if {
	inputs := sallyport.inputs(given)
	answers := [[decision, limits] |
		some asked in inputs
		decision := data.sallyport.decision with input as asked
		limits := [limit | decision.action != "deny"; some limit in data.sallyport.contributed.limit with input as asked]
	]
	count(answers) == count(inputs)
}

decisions(list) := made if {
	made := [decide(given) | some given in list]
	count(made) == count(list)
}
