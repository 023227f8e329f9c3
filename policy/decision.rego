# METADATA
# title: Sallyport's decision
# description: |
#   Decides about one name, connection or request.
#
#   The rules of sallyport.yaml are compiled into data.sallyport.index, by
#   destination and selection of sandboxes; input.lookup.keys holds the keys, so
#   that a decision looks up a few entries however many rules there are. An entry
#   is {rule, type, inject, pattern, effects}: pattern is matched against
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
	some rank, key in input.lookup.keys
	some entry in data.sallyport.index[key]
	effect := entry.effects[input.lookup.moment]
	regex.match(entry.pattern, input.lookup.line)
}

first := min(speaking)

# document is what sallyport.yaml alone decides. Its type is empty when no rule
# speaks.
document := {
	"action": "allow",
	"type": entry.type,
	"rule": entry.rule,
	"reason": concat(" ", ["allowed by rule", entry.rule]),
	"inject": injected,
} if {
	[effect, _, entry] := first
	effect in {3, 5}
} else := verdict("deny", first[2], "denied by rule") if {
	first[0] == 1
} else := verdict("deny", governor, "no egressAuth rule of this destination allows it; see rule") if {
	first[0] in {2, 4}
	not authorised
	governor := min({[rank, entry] | some [4, rank, entry] in speaking})[1]
} else := verdict("approve", first[2], "an approval is needed by rule") if {
	first[0] == 2
} else := verdict("allow", tunnel, "allowed, but not unread, by rule") if {
	first[0] == 6
	tunnel := min({[rank, entry] | some [7, rank, entry] in speaking})[1]
} else := verdict("tunnel", first[2], "allowed by rule") if {
	first[0] == 7
} else := {
	"action": "deny",
	"type": "",
	"rule": "",
	"reason": concat(" ", ["no rule allows", what]),
	"inject": set(),
}

verdict(action, entry, why) := {
	"action": action,
	"type": entry.type,
	"rule": entry.rule,
	"reason": concat(" ", [why, entry.rule]),
	"inject": injected,
}

# Only a request carries a credential.
injected := {entry.inject | some [3, _, entry] in speaking} if {
	input.phase == "request"
} else := set()

authorised if {
	some [3, _, _] in speaking
}

# The decision: deny, else approve, else allow; what nothing speaks about is
# denied.
decision := document if {
	not data.sallyport.contributed.present
} else := {
	"action": "deny",
	"type": "rego",
	"rule": "sallyport.team",
	"reason": "the team's policy is malformed, so everything is denied",
	"error": sprintf("an allow must be {\"rule\": …, \"reason\": …, \"protocols\": […]}, got %v", [min(malformed)]),
} if {
	count(malformed) > 0
} else := {"action": "deny", "type": "rego", "rule": msg.rule, "reason": msg.reason} if {
	msg := min(data.sallyport.contributed.deny)
} else := document if {
	document.action == "deny"
	document.type != ""
} else := by_team(approval, min(data.sallyport.contributed.approve)) if {
	count(data.sallyport.contributed.approve) > 0
} else := object.union(document, {"action": passage, "inject": inject}) if {
	document.action != "deny"
} else := by_team(passage, min(offers)) if {
	count(offers) > 0
} else := document

by_team(action, offer) := {
	"action": action,
	"type": "rego",
	"rule": offer.rule,
	"reason": object.get(offer, "reason", "allowed by the team's policy"),
	"inject": inject,
}

inject := document.inject | {injection |
	input.phase == "request"
	some injection in data.sallyport.contributed.inject
}

# A name may be looked up before anybody is asked.
approval := "allow" if {
	input.phase == "dns"
} else := "approve"

# What the team's Rego allows is read, if it can be.
passage := "tunnel" if {
	input.protocol == "other"
	document.action != "approve"
} else := "allow" if {
	document.action in {"deny", "tunnel"}
	count(offers) > 0
} else := document.action

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

what := sprintf("%s to %s:%d", [input.protocol, input.destination.host, input.destination.port]) if {
	input.phase == "connect"
}

what := sprintf("%s at %s:%d", [input.lookup.line, input.destination.host, input.destination.port]) if {
	input.phase == "request"
}
