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

decide(entries, contributed) := decision if {
	index := {"api.example.com:443 *": entries}
	given := testing.complete({}) with data.sallyport.index as index
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
