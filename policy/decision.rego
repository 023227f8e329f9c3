# METADATA
# title: Sallyport's decision
# description: |
#   Decides about one name, connection or request.
#
#   The rules of sallyport.yaml are compiled into what they do in each moment, by
#   destination and selection of sandboxes. input.lookup.rules holds those for this
#   input, a few however many rules there are, each as [pattern, effects, by]:
#   pattern is matched against input.lookup.line, and effects[whether it matches]
#   says what the rule does. An effect is a number; the lowest one decides:
#
#     1    deny
#     2    approve     a person decides
#     3    authorise   allow, with a credential that no other goes with
#     3.5  authorise   where other rules may authorise the same request
#     4    govern      the destination needs an authorising rule
#     5    allow       read, and decided per request
#     6    read        grants nothing, but nothing here may pass unread
#     7    tunnel      pass unread
#
#   by is [rank, type, rule, inject]. The lower the rank, the more exactly the rule
#   names the host; no two rules of an input have the same. inject is a set, with the
#   credential of an authorising rule where the input is a request.
#
#   A team's own Rego arrives through data.sallyport.contributed, which gathers
#   the sets of its packages.
#
#   Every request waits for document, or for answer where a team's Rego says
#   something. What they cost is counted in expressions and variables: measure
#   before you add one.
package sallyport

# document is what sallyport.yaml alone decides, as [[action, why], by]. The type is
# empty when no rule speaks. Where at most one rule does, its answers have been
# written down as the others come to them, with outcomes and nobody.
document := input.lookup.settled[0] if {
	true
} else := answers[regex.match(pattern, input.lookup.line)] if {
	[pattern, answers] = input.lookup.depends
} else := [outcomes[effect], by] if {
	line := input.lookup.line
	speaking := [[effect, by] |
		some [pattern, effects, by] in input.lookup.rules
		effect := effects[regex.match(pattern, line)]
	]
	min(speaking, [effect, by])
} else := considered

# outcomes says what comes of the lowest effect where that says it all.
outcomes := {
	1: ["deny", "denied by rule"],
	3: ["allow", "allowed by rule"],
	4: ["deny", "no egressAuth rule of this destination allows it; see rule"],
	5: ["allow", "allowed by rule"],
	7: ["tunnel", "allowed by rule"],
}

# considered is the document where the lowest effect alone does not say it all.
considered := nobody if {
	speaking == []
} else := [["deny", "no egressAuth rule of this destination allows it; see rule"], governor] if {
	lowest == 2
	count(authorising) == 0
	governor := min([by | some [4, by] in speaking])
} else := [["approve", "an approval is needed by rule"], carrying(speaking[0][1])] if {
	lowest == 2
} else := [["allow", "allowed by rule"], carrying(speaking[0][1])] if {
	lowest == 3.5
} else := [["allow", "allowed, but not unread, by rule"], tunnel] if {
	lowest == 6
	tunnel := min([by | some [7, by] in speaking])
} else := nobody

nobody := [["deny", "no rule allows"], [0, "", "", set()]]

# speaking lists what speaks about this input, as [effect, by], what decides first.
speaking := sort([[effect, by] |
	some [pattern, effects, by] in input.lookup.rules
	effect := effects[regex.match(pattern, input.lookup.line)]
])

lowest := speaking[0][0]

authorising contains by if {
	some [effect, by] in speaking
	effect in {3, 3.5}
}

# carrying is by with what all rules inject that authorise the input.
carrying(by) := [by[0], by[1], by[2], {credential | some [_, _, _, inject] in authorising; some credential in inject}]

# The answer, in the form of document: deny, else approve, else allow; what
# nothing speaks about is denied. An outcome may have an error besides.
#
# Where a team can make no malformed allow, only settled is asked for; where none
# denies, only weighed; and where all that is contributed is empty, the answer is
# document, and only that is asked for.
answer := [["deny", "the team's policy is malformed, so everything is denied", error], [0, "rego", "sallyport.team", set()]] if {
	offer := min(malformed)
	error := sprintf("an allow must be {\"rule\": …, \"reason\": …, \"protocols\": […]}, got %v", [offer])
} else := settled

# settled is the answer where every allow is well formed.
settled := [["deny", msg.reason], [0, "rego", msg.rule, set()]] if {
	msg := min(data.sallyport.contributed.deny)
} else := weighed

# weighed is the answer where, besides, no team denies.
weighed := document if {
	document[0][0] == "deny"
	document[1][1] != ""
} else := [[approval, offer.reason], [0, "rego", offer.rule, inject]] if {
	offer := min(data.sallyport.contributed.approve)
} else := granted

# granted is the answer where, besides, no team asks for an approval.
granted := [[passage, why], [rank, type, rule, inject]] if {
	document[0][0] != "deny"
	[[_, why], [rank, type, rule, _]] := document
} else := [[opening, reason], [0, "rego", offer.rule, inject]] if {
	document[1][1] == ""
	offer := min(offers)
	reason := object.get(offer, "reason", "allowed by the team's policy")
} else := document

# The decision is the answer in full. What the reason ends with, the rule's name or
# what was asked for, is no part of an answer: every request waits for those.
decision := object.union(
	{
		"action": answer[0][0],
		"type": answer[1][1],
		"rule": answer[1][2],
		"reason": reason,
		"inject": {injection | answer[0][0] != "deny"; some injection in answer[1][3]},
	},
	{"error": error | error := answer[0][2]},
)

reason := concat(" ", [answer[0][1], answer[1][2]]) if {
	answer[1][1] in {"egress", "egressAuth"}
} else := concat(" ", [answer[0][1], what]) if {
	answer[1][1] == ""
} else := answer[0][1]

inject := document[1][3] | data.sallyport.contributed.inject if {
	input.phase == "request"
} else := document[1][3]

# A name may be looked up before anybody is asked.
approval := "allow" if {
	input.phase == "dns"
} else := "approve"

# What the document allows is read, if it can be, where the team's Rego allows it too.
passage := "tunnel" if {
	input.protocol == "other"
	document[0][0] != "approve"
} else := "allow" if {
	document[0][0] == "tunnel"
	count(offers) > 0
} else := document[0][0]

# And so is what the team's Rego alone allows.
opening := "tunnel" if {
	input.protocol == "other"
} else := "allow"

# A team's allow speaks about TLS unless it lists other protocols.
offers contains offer if {
	input.phase == "dns"
	some offer in data.sallyport.contributed.allow
}

offers contains offer if {
	some offer in data.sallyport.contributed.allow
	input.protocol in object.get(offer, "protocols", ["tls"])
}

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
