package sallyport_test

import data.sallyport
import data.sallyport.testing

# entry is a rule that has one effect at every moment.
entry(name, effect) := {
	"rule": name,
	"type": "egress",
	"inject": {"credential": name, "rule": name},
	"pattern": "",
	"effects": {true: {m: effect |
		some m in ["dns", "connect/tls", "connect/http", "connect/other", "request/tls", "request/http"]
	}},
}

decide(entries, contributed) := decide_at({}, entries, contributed)

decide_at(partial, entries, contributed) := decision if {
	index := {"api.example.com:443 *": entries}
	given := testing.complete(partial) with data.sallyport.index as index
		with data.sallyport.selectors as {"*": {"tags": {}}}
	decision := sallyport.decision with data.sallyport.index as index
		with data.sallyport.contributed as contributed
		with input as given
}

none := {}

test_nothing_speaks if {
	d := decide([], none)
	d.action == "deny"
	d.type == ""
	contains(d.reason, "GET / at api.example.com:443")
}

test_lowest_effect_decides if {
	every pair in [[1, "deny"], [2, "approve"], [3, "allow"], [5, "allow"]] {
		decide([entry("low", pair[0]), entry("high", 7)], none).action == pair[1]
		decide([entry("high", 7), entry("low", pair[0])], none).rule == "low"
	}
	decide([entry("low", 7)], none).action == "tunnel"
}

test_governed_without_authorisation_is_denied if {
	every effect in [2, 5, 6, 7] {
		d := decide([entry("governor", 4), entry("other", effect)], none)
		d.action == "deny"
		d.rule == "governor"
	}
	decide([entry("governor", 4), entry("auth", 3)], none).action == "allow"
}

test_read_grants_nothing if {
	decide([entry("read", 6)], none).action == "deny"
	decide([entry("read", 6), entry("tunnel", 7)], none).action == "allow"
}

test_inject_comes_from_authorising_rules if {
	d := decide([entry("auth", 3), entry("allow", 5)], none)
	d.inject == {{"credential": "auth", "rule": "auth"}}
}

test_team_deny_wins_over_everything if {
	d := decide([entry("auth", 3)], {"deny": {{"rule": "sallyport.team.x", "reason": "no"}}})
	d.action == "deny"
	d.type == "rego"
	d.reason == "no"
}

test_team_approve_comes_before_allow_and_after_deny if {
	approve := {"approve": {{"rule": "sallyport.team.x", "reason": "ask"}}}
	decide([entry("auth", 3)], approve).action == "approve"
	decide([], approve).action == "approve"
	decide([entry("deny", 1)], approve).rule == "deny"
	decide([entry("governor", 4)], approve).action == "deny"
}

test_team_allow if {
	allow := {"allow": {{"rule": "mine", "reason": "because"}}}
	d := decide([], allow)
	d.action == "allow"
	d.rule == "mine"
	d.reason == "because"
	decide([entry("deny", 1)], allow).action == "deny"
	decide([entry("governor", 4)], allow).action == "deny"
	decide([entry("rule", 5)], allow).rule == "rule"
	decide([entry("tunnel", 7)], allow).action == "allow"
}

test_team_allow_for_another_protocol if {
	decide([], {"allow": {{"rule": "mine", "protocols": ["http"]}}}).action == "deny"
}

test_malformed_allow_denies_everything if {
	d := decide([entry("auth", 3)], {"allow": {"yes", {"rule": "fine"}}})
	d.action == "deny"
	d.error
}

test_team_inject_joins if {
	d := decide([entry("auth", 3)], {"inject": {{"credential": "more"}}})
	count(d.inject) == 2
}

# What a decision says is part of what it means: an agent reads it, and a person
# who looks for the rule.

test_reason_names_the_rule if {
	every pair in [
		[1, "denied by rule r"],
		[2, "an approval is needed by rule r"],
		[3, "allowed by rule r"],
		[3.5, "allowed by rule r"],
		[4, "no egressAuth rule of this destination allows it; see rule r"],
		[5, "allowed by rule r"],
		[7, "allowed by rule r"],
	] {
		d := decide([entry("r", pair[0])], none)
		d.reason == pair[1]
		d.rule == "r"
		d.type == "egress"
	}
	decide([entry("read", 6), entry("tunnel", 7)], none).reason == "allowed, but not unread, by rule tunnel"
	governed := decide([entry("governor", 4), entry("ask", 2)], none)
	governed.reason == "no egressAuth rule of this destination allows it; see rule governor"
	auth := object.union(entry("r", 3), {"type": "egressAuth"})
	decide([auth], none).reason == "allowed by rule r"
}

test_reason_says_what_no_rule_allows if {
	decide([], none).reason == "no rule allows GET / at api.example.com:443"
	decide_at({"phase": "connect"}, [], none).reason == "no rule allows tls to api.example.com:443"
	decide_at({"phase": "connect", "protocol": "other"}, [], none).reason == "no rule allows other to api.example.com:443"
	decide_at({"phase": "dns"}, [], none).reason == "no rule allows api.example.com"
	d := decide([], none)
	d.rule == ""
	d.inject == set()
	not d.error
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
	governed := decide([entry("ask", 2), entry("one", 4), entry("two", 4)], none)
	governed.rule == "one"
	read := decide([entry("read", 6), entry("one", 7), entry("two", 7)], none)
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
	decide_at(raw, [entry("tunnel", 7)], offer).action == "tunnel"
	decide_at(raw, [entry("ask", 2)], offer).action == "approve"
	decide_at(raw, [entry("tunnel", 7)], none).action == "tunnel"
	tls := {"phase": "connect"}
	decide_at(tls, [entry("tunnel", 7)], {"allow": {{"rule": "mine"}}}).action == "allow"
}

test_a_name_may_be_looked_up_before_anybody_is_asked if {
	d := decide_at({"phase": "dns"}, [], {"approve": {{"rule": "sallyport.team.x", "reason": "ask"}}})
	d.action == "allow"
	d.rule == "sallyport.team.x"
}

# A credential goes into a request, and only where something authorises it.
test_credentials_go_into_requests_only if {
	team := {"inject": {{"credential": "more"}}}
	decide_at({"phase": "connect"}, [entry("rule", 5)], team).inject == set()
	bare := object.remove(entry("rule", 5), ["inject"])
	decide([bare], team).inject == {{"credential": "more"}}
	decide([], team).inject == set()
	decide([entry("deny", 1)], team).inject == set()
	decide([entry("ask", 2), entry("auth", 3)], none).inject == {{"credential": "auth", "rule": "auth"}}
	asked := decide([entry("ask", 2), entry("auth", 3), entry("governor", 4)], none)
	asked.action == "approve"
	asked.inject == {{"credential": "auth", "rule": "auth"}}
	joined := decide([entry("one", 3.5), entry("two", 3.5)], none)
	count(joined.inject) == 2
}
