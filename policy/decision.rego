# METADATA
# title: Sallyport's decision
# description: |
#   Decides about one name, connection or request.
#
#   The rules of sallyport.yaml are compiled into data.sallyport.index, by
#   destination and by selection of sandboxes; input.lookup holds the keys, so
#   that a decision looks up a few entries however many rules there are. An entry
#   is {rule, type, credential, pattern, effects}: pattern is matched against
#   input.lookup.line, and effects says what the rule does in each
#   input.lookup.moment. An effect is a number; the lowest one decides:
#
#     1 deny
#     2 approve     a person decides
#     3 authorise   allow, with a credential
#     4 govern      the destination needs an authorising rule
#     5 allow       read, and decided per request
#     6 read        grants nothing, but nothing here may pass unread
#     7 tunnel      pass unread
#
#   A team's own Rego arrives through data.sallyport.contributed, which gathers
#   the sets of its packages.
package sallyport

# speaking holds what speaks about this input, as [effect, rank, entry]. The
# lower the rank, the more exactly the rule names the host.
speaking contains [effect, rank, entry] if {
	some rank, key in input.lookup.destinations
	some who in input.lookup.sandboxes
	some entry in data.sallyport.index[key][who]
	effect := entry.effects[input.lookup.moment]
	regex.match(entry.pattern, input.lookup.line)
}

first := min(speaking)

# The decision: deny, else approve, else allow; what nothing speaks about is
# denied.
decision := {
	"action": "deny",
	"type": "rego",
	"rule": "sallyport.team",
	"reason": "the team's policy is malformed, so everything is denied",
	"error": sprintf("an allow must be {\"rule\": …, \"reason\": …, \"protocols\": […]}, got %v", [min(malformed)]),
} if {
	count(malformed) > 0
} else := {"action": "deny", "type": "rego", "rule": msg.rule, "reason": msg.reason} if {
	msg := min(data.sallyport.contributed.deny)
} else := verdict("deny", first[2], "denied by rule") if {
	first[0] == 1
} else := verdict("deny", governor, "no egressAuth rule of this destination allows it; see rule") if {
	first[0] in {2, 4}
	not authorised
	governor := min({[rank, entry] | some [4, rank, entry] in speaking})[1]
} else := {"action": approval, "type": "rego", "rule": msg.rule, "reason": msg.reason, "inject": inject} if {
	msg := min(data.sallyport.contributed.approve)
} else := injecting("approve", first[2], "an approval is needed by rule") if {
	first[0] == 2
} else := injecting("allow", first[2], "allowed by rule") if {
	first[0] == 3
} else := injecting("allow", first[2], "allowed by rule") if {
	first[0] == 5
} else := injecting("allow", tunnel, "allowed, but not unread, by rule") if {
	first[0] == 6
	tunnel := min({[rank, entry] | some [7, rank, entry] in speaking})[1]
} else := injecting(unread, first[2], "allowed by rule") if {
	first[0] == 7
} else := {
	"action": passage,
	"type": "rego",
	"rule": offer.rule,
	"reason": object.get(offer, "reason", "allowed by the team's policy"),
	"inject": inject,
} if {
	offer := min(offers)
} else := {"action": "deny", "type": "", "rule": "", "reason": concat(" ", ["no rule allows", what])}

verdict(action, entry, why) := {
	"action": action,
	"type": entry.type,
	"rule": entry.rule,
	"reason": concat(" ", [why, entry.rule]),
}

injecting(action, entry, why) := {
	"action": action,
	"type": entry.type,
	"rule": entry.rule,
	"reason": concat(" ", [why, entry.rule]),
	"inject": inject,
}

authorised if {
	some [3, _, _] in speaking
}

# Only a request carries a credential.
inject contains {"credential": entry.credential, "rule": entry.rule} if {
	input.phase == "request"
	some [3, _, entry] in speaking
}

inject contains injection if {
	input.phase == "request"
	some injection in data.sallyport.contributed.inject
}

# A name may be looked up before anybody is asked.
approval := "allow" if input.phase == "dns"

approval := "approve" if input.phase != "dns"

# What the team's Rego allows is read, if it can be.
unread := "allow" if {
	input.protocol != "other"
	count(offers) > 0
} else := "tunnel"

passage := "tunnel" if {
	input.protocol == "other"
} else := "allow"

# A team's allow speaks about TLS unless it lists other protocols.
offers contains offer if {
	some offer in data.sallyport.contributed.allow
	offered(offer)
}

offered(_) if input.phase == "dns"

offered(offer) if input.protocol in object.get(offer, "protocols", ["tls"])

malformed contains offer if {
	some offer in data.sallyport.contributed.allow
	not well_formed(offer)
}

well_formed(offer) if {
	is_object(offer)
	is_string(offer.rule)
	is_string(object.get(offer, "reason", ""))
	is_array(object.get(offer, "protocols", []))
}

what := input.destination.host if input.phase == "dns"

what := sprintf("%s at %s:%d", [input.protocol, input.destination.host, input.destination.port]) if {
	input.phase == "connect"
}

what := sprintf("%s %s at %s:%d", [
	input.request.method,
	input.request.path,
	input.destination.host,
	input.destination.port,
]) if {
	input.phase == "request"
}
