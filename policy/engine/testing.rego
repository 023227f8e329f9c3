# METADATA
# title: Inputs for tests
# description: |
#   Completes an input for a test, as Sallyport does before a decision:
#
#     deny with input as testing.complete({"phase": "request", …})
#
#   builders.rego makes inputs from URLs, and asks for decisions; floor.rego has
#   the floor and the limits of those. Nothing of this is loaded into a running
#   Sallyport.
package sallyport.testing

defaults := {
	"phase": "request",
	"protocol": "tls",
	"sandbox": {"name": "test", "id": "test", "session": "test", "tags": {}},
	"destination": {"host": "api.example.com", "port": 443},
	"request": {
		"method": "GET",
		"scheme": "https",
		"path": "/",
		"query_keys": [],
		"headers": [],
		"size": -1,
	},
}

# complete fills in what partial leaves out, and finds input.rules.
complete(partial) := object.union(given, {"rules": matching(given)}) if {
	phase := object.get(partial, "phase", "request")
	absent := {"dns": ["protocol", "request"], "connect": ["request"], "request": []}[phase]
	given := spelled(object.remove(object.union(defaults, partial), absent))
}

# A path is as it was sent where nothing else is said.
spelled(given) := object.union({"request": {"raw_path": given.request.path}}, given) if {
	given.request
} else := given

# matching is input.rules: what matches, by what it does.
matching(given) := {effect: rules |
	entries := [entry | some key in keys(given); some entry in data.sallyport.index[key]]
	some effect in {does(entry, given) | some entry in entries}
	rules := [object.filter(entry, ["rule", "type", "inject"]) | some entry in entries; does(entry, given) == effect]
}

# does is undefined for an entry that does nothing.
does(entry, given) := entry.effects[regex.match(entry.pattern, line(given))][moment(given)]

keys(given) := [key | some [_, key] in sort([[rank, key] | some rank, key; ranked(given)[rank][key]])]

moment(given) := "dns" if {
	given.phase == "dns"
} else := concat("/", [given.phase, given.protocol])

line(given) := concat(" ", [given.request.method, given.request.path]) if {
	given.request
} else := ""

# ranked maps a rank to keys of the index, the most exact destination first.
ranked(given) := {rank: keys |
	some rank, destination in array.concat(domains(given.destination.host), prefixes(given.destination.host))
	keys := {key |
		some port in ports(given)
		some selector in picking(given.sandbox)
		key := sprintf("%s:%s %s", [destination, port, selector])
		data.sallyport.index[key]
	}
}

# domains lists a name and the wildcards that it lies below.
domains(host) := array.concat([host], [wildcard |
	labels := split(host, ".")
	some i in numbers.range(1, count(labels) - 1)
	i < count(labels)
	i > 0
	wildcard := concat(".", array.concat(["*"], array.slice(labels, i, count(labels))))
])

# prefixes lists the prefixes of the index that hold an address, longest first.
prefixes(host) := prefixes_in({key | some key, _ in data.sallyport.index}, host)

# prefixes_in lists those of some keys.
prefixes_in(among_keys, host) := [prefix |
	some [_, prefix] in sort({[0 - bits, prefix] |
		some key in among_keys
		contains(key, "/")
		prefix := regex.replace(key, `:[^: ]*( .*)?$`, "")
		bits := to_number(split(prefix, "/")[1])
		regex.match(`^[0-9a-f:.]+$`, host)
		regex.match(`^([0-9]+\.){3}[0-9]+$|:`, host)
		contains(host, ":") == contains(prefix, ":")
		net.cidr_contains(prefix, host)
	})
]

ports(given) := ["*", sprintf("%d", [given.destination.port])] if {
	given.phase != "dns"
} else := {port |
	some key, _ in data.sallyport.index
	port := regex.replace(split(key, " ")[0], `^.*:`, "")
}

# picking holds the selectors that pick a sandbox.
picking(sandbox) := {key |
	some key, selector in data.sallyport.selectors
	object.get(selector, "name", sandbox.name) == sandbox.name
	every tag, value in selector.tags {
		sandbox.tags[tag] == value
	}
}
