package sallyport.testing

# What Sallyport makes of data.sallyport.decision, but for observe mode, which lifts
# it for a time: what testing.decide says is what is enforced.

# settled is a decision after the floor, with the limits that it falls under. How
# much of those is used is for the gateway to say.
settled(given, decision) := object.union(min(blind(given)), {"limits": []}) if {
	count(blind(given)) > 0
} else := refused(min(fallen(given, decision))) if {
	count(fallen(given, decision)) > 0
} else := refused("a team's limit must be {\"name\": …, \"per\": …, \"every\": …, \"requests\": …}") if {
	misshapen(given, decision)
} else := object.union(decision, {"limits": sort(limited(given, decision))})

refused(reason) := {"action": "deny", "type": "floor", "rule": "", "reason": reason, "inject": set(), "limits": []}

# blind holds a denial for each rule that has to see the request's body and cannot.
blind(given) := {denial |
	given.phase == "request"
	some key in keys(given)
	some entry in data.sallyport.index[key]
	wanted := data.sallyport.bodies[entry.rule]
	entry.effects[true][moment(given)]
	regex.match(entry.pattern, line(given))
	why := unseen(given.request, wanted)
	denial := {
		"action": "deny",
		"type": entry.type,
		"rule": entry.rule,
		"reason": sprintf("the rule %s decides by the request's body: %s", [entry.rule, why]),
		"inject": set(),
	}
}

unseen(request, wanted) := "it is too long" if {
	request.size > wanted.max
} else := "a GraphQL request has no query parameters" if {
	wanted.view == "graphql"
	count(request.query_keys) > 0
} else := sprintf("it was not read: give the test's request a body with %s", [wanted.view]) if {
	not wanted.view in object.keys(object.get(request, "body", {}))
}

# fallen holds what keeps the decision's credentials from where they would go.
fallen(given, decision) := {reason |
	some injection in decision.inject
	reason := obstacle(given, decision, injection)
}

obstacle(given, decision, injection) := sprintf("credential %s goes into requests over TLS only", [injection.credential]) if {
	[given.phase, given.protocol] != ["request", "tls"]
} else := sprintf("credential %s is not bound to %s:%d by any egressAuth rule", [injection.credential, at.host, at.port]) if {
	at := given.destination
	not bound(at, injection.credential)
} else := sprintf("two credentials would go into the %s", [place(injection)]) if {
	some other in decision.inject
	other != injection
	place(other) == place(injection)
}

# bound tells whether some egressAuth rule, for whatever sandboxes, binds a
# credential to a destination.
bound(destination, credential) if {
	some key, entries in data.sallyport.index
	some entry in entries
	entry.type == "egressAuth"
	entry.inject.credential == credential
	covers(split(key, " ")[0], destination)
}

# covers tells whether a destination is one of HOST:PORT, where HOST is a name,
# *.name or a prefix, and PORT may be *.
covers(key, destination) if {
	regex.replace(key, `^.*:`, "") in ["*", sprintf("%d", [destination.port])]
	some host in array.concat(domains(destination.host), prefixes_in({key}, destination.host))
	regex.replace(key, `:[^:]*$`, "") == host
}

# place is where a credential goes in the request.
place(injection) := data.sallyport.places[injection.rule] if {
	injection.rule
} else := sprintf("header %s", [canonical_header(injection.inject.header.name)]) if {
	injection.inject.header
} else := sprintf("query parameter %s", [injection.inject.query.name]) if {
	injection.inject.query
} else := "header Authorization"

# misshapen tells of a limit of a team's that could not be applied.
misshapen(given, decision) if {
	carried(given, decision)
	some limit in data.sallyport.contributed.limit
	not object.keys(limit) & bounds == object.keys(limit)
}

misshapen(given, decision) if {
	carried(given, decision)
	some limit in data.sallyport.contributed.limit
	not is_string(limit.name)
}

bounds := {"name", "credential", "per", "every", "requests", "bytes", "uses", "concurrent", "size", "hours"}

# limited holds the limits that a decision falls under, those of sallyport.yaml
# and of the team, with whose counters theirs are.
limited(given, decision) := {{"name": limit.name, "per": per, "subject": subject} |
	carried(given, decision)
	some limit in array.concat(data.sallyport.limits, [limit | some limit in data.sallyport.contributed.limit])
	concerns(limit, given)
	per := object.get(limit, "per", "sandbox")
	with_it := {injection.credential |
		some injection in decision.inject
		object.get(limit, "credential", injection.credential) == injection.credential
	}
	has_its_credential(limit, with_it)
	some subject in subjects(per, given, with_it)
}

# carried tells whether something is carried after a decision.
carried(given, decision) if {
	given.phase == "request"
	decision.action in {"allow", "approve"}
}

carried(given, decision) if {
	given.phase == "connect"
	decision.action in {"tunnel", "approve"}
}

# concerns tells whether a limit is about a sandbox and a destination. A team's
# says neither.
concerns(limit, given) if {
	chosen(limit, given.sandbox)
	reached(limit, given.destination)
}

chosen(limit, _) if not limit.selectors

chosen(limit, sandbox) if {
	some selector in limit.selectors
	object.get(selector, "name", sandbox.name) == sandbox.name
	every tag, value in selector.tags {
		sandbox.tags[tag] == value
	}
}

reached(limit, _) if not limit.destinations

reached(limit, destination) if {
	some key in limit.destinations
	covers(key, destination)
}

has_its_credential(limit, _) if not limit.credential

has_its_credential(_, with_it) if count(with_it) > 0

subjects("credential", _, with_it) := with_it

subjects("all", _, _) := {"all"}

subjects("destination", given, _) := {sprintf("%s:%d", [bracketed(given.destination.host), given.destination.port])}

subjects("sandbox", given, _) := {subject} if {
	subject := [id | some id in [given.sandbox.id, given.sandbox.name]; id != ""][0]
}

subjects(per, given, _) := {object.get(given.sandbox.tags, trim_prefix(per, "tag:"), "")} if startswith(per, "tag:")

bracketed(host) := sprintf("[%s]", [host]) if {
	contains(host, ":")
} else := host
