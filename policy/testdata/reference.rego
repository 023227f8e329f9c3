# METADATA
# title: Sallyport's decision
# description: |
#   Decides about one name, connection or request.
#
#   The rules of sallyport.yaml are compiled into data.sallyport.index, by
#   destination and selection of sandboxes; input.lookup.keys holds the keys, so
#   that a decision looks up a few entries however many rules there are. An entry
#   is {rule, type, inject, pattern, effects}: pattern is matched against
#   input.lookup.line, and effects[whether it matches] says what the rule does in
#   each input.lookup.moment. An effect is a number; the lowest one decides:
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

# speaking lists what speaks about this input, as [effect, rank, entry], what
# decides first. The lower the rank, the more exactly the rule names the host.
speaking := sort([[effect, rank, entry] |
	some rank, key in input.lookup.keys
	some entry in data.sallyport.index[key]
	effect := entry.effects[regex.match(entry.pattern, input.lookup.line)][input.lookup.moment]
])

# document is what sallyport.yaml alone decides, as [action, why, by, inject]. Its
# by is the entry that decided; that one's type is empty when no rule speaks. Only
# a request carries a credential.
document := [outcome[0], outcome[1], entry, inject] if {
	spoken := speaking
	[effect, _, entry] := spoken[0]
	outcome := {
		1: ["deny", "denied by rule"],
		3: ["allow", "allowed by rule"],
		4: ["deny", "no egressAuth rule of this destination allows it; see rule"],
		5: ["allow", "allowed by rule"],
		7: ["tunnel", "allowed by rule"],
	}[effect]
	inject := {e.inject | input.phase == "request"; some [3, _, e] in spoken}
} else := ["deny", "no egressAuth rule of this destination allows it; see rule", governor, set()] if {
	speaking[0][0] == 2
	not authorised
	governor := [entry | some [4, _, entry] in speaking][0]
} else := ["approve", "an approval is needed by rule", speaking[0][2], inject] if {
	speaking[0][0] == 2
	inject := {e.inject | input.phase == "request"; some [3, _, e] in speaking}
} else := ["allow", "allowed, but not unread, by rule", tunnel, set()] if {
	speaking[0][0] == 6
	tunnel := [entry | some [7, _, entry] in speaking][0]
} else := ["deny", "no rule allows", {"type": "", "rule": ""}, set()]

authorised if {
	some [3, _, _] in speaking
}

# The answer, in the form of document: deny, else approve, else allow; what
# nothing speaks about is denied.
answer := [
	"deny",
	"the team's policy is malformed, so everything is denied",
	{
		"type": "rego",
		"rule": "sallyport.team",
		"error": sprintf("an allow must be {\"rule\": …, \"reason\": …, \"protocols\": […]}, got %v", [min(malformed)]),
	},
	set(),
] if {
	count(malformed) > 0
} else := ["deny", msg.reason, {"type": "rego", "rule": msg.rule}, set()] if {
	msg := min(data.sallyport.contributed.deny)
} else := document if {
	document[0] == "deny"
	document[2].type != ""
} else := by_team(approval, offer) if {
	offer := min(data.sallyport.contributed.approve)
} else := [passage, document[1], document[2], inject] if {
	document[0] != "deny"
} else := by_team(passage, offer) if {
	offer := min(offers)
} else := document

by_team(action, offer) := [
	action,
	object.get(offer, "reason", "allowed by the team's policy"),
	{"type": "rego", "rule": offer.rule},
	inject,
]

# The decision is the answer in full. What the reason ends with, the rule's name or
# what was asked for, is no part of an answer: every request waits for those.
decision := object.union(
	{
		"action": answer[0],
		"type": answer[2].type,
		"rule": answer[2].rule,
		"reason": reason,
		"inject": answer[3],
	},
	{"error": error | error := answer[2].error},
)

reason := concat(" ", [answer[1], answer[2].rule]) if {
	answer[2].type in {"egress", "egressAuth"}
} else := concat(" ", [answer[1], what]) if {
	answer[2].type == ""
} else := answer[1]

inject := document[3] | {injection |
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
	document[0] != "approve"
} else := "allow" if {
	document[0] in {"deny", "tunnel"}
	count(offers) > 0
} else := document[0]

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
