package sallyport_test

import data.sallyport

# entry is a rule that does one thing.
entry(name, effect) := {"effect": effect, "type": "egress", "rule": name, "inject": {"credential": name, "rule": name}}

decide(entries, contributed) := decide_at({}, entries, contributed)

decide_at(partial, entries, contributed) := decision if {
	rules := {effect: list |
		some effect in {e.effect | some e in entries}
		list := [object.remove(e, ["effect"]) | some e in entries; e.effect == effect]
	}
	given := object.union(object.union({"phase": "request", "protocol": "tls"}, partial), {"rules": rules})
	made := sallyport.decision with data.sallyport.contributed as contributed
		with input as given
	decision := object.union({"inject": set()}, object.union(object.filter(made, ["action", "inject", "error"]), decided_by(made)))
}

# What decided, and the reason that is shown. Where nothing did, Go adds what was asked for.
decided_by(made) := {"type": made.rule.type, "rule": made.rule.rule, "reason": concat(" ", [made.why, made.rule.rule])} if {
	made.rule
} else := {"type": "rego", "rule": made.team.rule, "reason": object.get(made.team, "reason", object.get(made, "why", ""))} if {
	made.team
} else := {"type": "", "rule": "", "reason": made.why}

none := {}

test_nothing_speaks if {
	d := decide([], none)
	d.action == "deny"
	d.type == ""
}

test_lowest_effect_decides if {
	every pair in [["deny", "deny"], ["approve", "approve"], ["authorise", "allow"], ["allow", "allow"]] {
		decide([entry("low", pair[0]), entry("high", "tunnel")], none).action == pair[1]
		decide([entry("high", "tunnel"), entry("low", pair[0])], none).rule == "low"
	}
	decide([entry("low", "tunnel")], none).action == "tunnel"
}

test_governed_without_authorisation_is_denied if {
	every effect in ["approve", "allow", "read", "tunnel"] {
		d := decide([entry("governor", "govern"), entry("other", effect)], none)
		d.action == "deny"
		d.rule == "governor"
	}
	decide([entry("governor", "govern"), entry("auth", "authorise")], none).action == "allow"
}

test_read_grants_nothing if {
	decide([entry("read", "read")], none).action == "deny"
	decide([entry("read", "read"), entry("tunnel", "tunnel")], none).action == "allow"
}

test_inject_comes_from_authorising_rules if {
	d := decide([entry("auth", "authorise"), entry("allow", "allow")], none)
	d.inject == {{"credential": "auth", "rule": "auth"}}
}

test_team_deny_wins_over_everything if {
	d := decide([entry("auth", "authorise")], {"deny": {{"rule": "sallyport.team.x", "reason": "no"}}})
	d.action == "deny"
	d.type == "rego"
	d.reason == "no"
}

test_team_approve_comes_before_allow_and_after_deny if {
	approve := {"approve": {{"rule": "sallyport.team.x", "reason": "ask"}}}
	decide([entry("auth", "authorise")], approve).action == "approve"
	decide([], approve).action == "approve"
	decide([entry("deny", "deny")], approve).rule == "deny"
	decide([entry("governor", "govern")], approve).action == "deny"
}

test_team_allow if {
	allow := {"allow": {{"rule": "mine", "reason": "because"}}}
	d := decide([], allow)
	d.action == "allow"
	d.rule == "mine"
	d.reason == "because"
	decide([entry("deny", "deny")], allow).action == "deny"
	decide([entry("governor", "govern")], allow).action == "deny"
	decide([entry("rule", "allow")], allow).rule == "rule"
	decide([entry("tunnel", "tunnel")], allow).action == "allow"
}

test_team_allow_for_another_protocol if {
	decide([], {"allow": {{"rule": "mine", "protocols": ["http"]}}}).action == "deny"
}

test_malformed_allow_denies_everything if {
	d := decide([entry("auth", "authorise")], {"allow": {"yes", {"rule": "fine"}}})
	d.action == "deny"
	d.error
}

test_team_inject_joins if {
	d := decide([entry("auth", "authorise")], {"inject": {{"credential": "more"}}})
	count(d.inject) == 2
}

# What a decision says is part of what it means: an agent reads it, and a person
# who looks for the rule.

test_reason if {
	every pair in [
		["deny", "denied by rule r"],
		["approve", "an approval is needed by rule r"],
		["authorise", "allowed by rule r"],
		["govern", "no egressAuth rule of this destination allows it; see rule r"],
		["allow", "allowed by rule r"],
		["tunnel", "allowed by rule r"],
	] {
		d := decide([entry("r", pair[0])], none)
		d.reason == pair[1]
		d.rule == "r"
		d.type == "egress"
	}
	decide([entry("read", "read"), entry("tunnel", "tunnel")], none).reason == "allowed, but not unread, by rule tunnel"
	governed := decide([entry("governor", "govern"), entry("ask", "approve")], none)
	governed.reason == "no egressAuth rule of this destination allows it; see rule governor"
	auth := object.union(entry("r", "authorise"), {"type": "egressAuth"})
	decide([auth], none).reason == "allowed by rule r"
}

test_no_rule_allows if {
	every partial in [{}, {"phase": "connect"}, {"phase": "connect", "protocol": "other"}, {"phase": "dns"}] {
		decide_at(partial, [], none) == {"action": "deny", "type": "", "rule": "", "reason": "no rule allows", "inject": set()}
	}
}

# Of several elements of a set, the first in Rego's order speaks, always the same.
test_one_of_several_speaks if {
	two := {{"rule": "sallyport.team.a", "reason": "b"}, {"rule": "sallyport.team.b", "reason": "a"}}
	every set in ["deny", "approve"] {
		d := decide([], {set: two})
		d.action == set
		d.rule == "sallyport.team.b"
		d.type == "rego"
		d.reason == "a"
	}
	d := decide([], {"allow": {{"rule": "a"}, {"rule": "b"}}})
	d.rule == "a"
	d.type == "rego"
	d.reason == "allowed by the team's policy"
	governed := decide([entry("ask", "approve"), entry("one", "govern"), entry("two", "govern")], none)
	governed.rule == "one"
	read := decide([entry("read", "read"), entry("one", "tunnel"), entry("two", "tunnel")], none)
	read.rule == "one"
}

test_malformed_allow_says_which if {
	d := decide([], {"allow": {"a", "b"}})
	d.reason == "the team's policy is malformed, so everything is denied"
	d.rule == "sallyport.team"
	d.type == "rego"
	d.error == `an allow must be {"rule": …, "reason": …, "protocols": […]}, got a`
	every wrong in [["rule", "x"], {"reason": "x"}, {"rule": 1}, {"rule": "x", "reason": 1}, {"rule": "x", "protocols": "tls"}] {
		decide([], {"allow": {wrong}}).error
	}
	not decide([], {"allow": {{"rule": "x"}}}).error
}

# Bytes that nobody can read pass unread or not at all.
test_another_protocol_passes_unread if {
	raw := {"phase": "connect", "protocol": "other"}
	offer := {"allow": {{"rule": "mine", "protocols": ["other"]}}}
	decide_at(raw, [], offer).action == "tunnel"
	decide_at(raw, [entry("tunnel", "tunnel")], offer).action == "tunnel"
	decide_at(raw, [entry("ask", "approve")], offer).action == "approve"
	decide_at(raw, [entry("tunnel", "tunnel")], none).action == "tunnel"
	tls := {"phase": "connect"}
	decide_at(tls, [entry("tunnel", "tunnel")], {"allow": {{"rule": "mine"}}}).action == "allow"
}

test_a_name_may_be_looked_up_before_anybody_is_asked if {
	d := decide_at({"phase": "dns"}, [], {"approve": {{"rule": "sallyport.team.x", "reason": "ask"}}})
	d.action == "allow"
	d.rule == "sallyport.team.x"
}

# A credential goes into a request, and only where something authorises it.
test_credentials_go_into_requests_only if {
	team := {"inject": {{"credential": "more"}}}
	decide_at({"phase": "connect"}, [entry("rule", "allow")], team).inject == set()
	bare := object.remove(entry("rule", "allow"), ["inject"])
	decide([bare], team).inject == {{"credential": "more"}}
	decide([], team).inject == set()
	decide([entry("deny", "deny")], team).inject == set()
	decide([entry("ask", "approve"), entry("auth", "authorise")], none).inject == {{"credential": "auth", "rule": "auth"}}
	asked := decide([entry("ask", "approve"), entry("auth", "authorise"), entry("governor", "govern")], none)
	asked.action == "approve"
	asked.inject == {{"credential": "auth", "rule": "auth"}}
	joined := decide([entry("one", "authorise"), entry("two", "authorise")], none)
	count(joined.inject) == 2
}
