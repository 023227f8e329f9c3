# METADATA
# title: Sallyport's decision
# description: |
#   Decides about one name, connection or request.
#
#   input.rules holds the rules of sallyport.yaml that match, by what they do: deny,
#   approve, authorise (allow with a credential), govern (the destination needs a rule
#   that authorises), allow, read (allow nothing, and let nothing pass unread), tunnel.
#   The rule with the most exact destination is first. A list with no rule is missing.
#
#   team holds the sets of the team's packages below sallyport.team: {rule, reason} each,
#   where rule is the package's name, or the name that an allow gives itself. A set that no
#   package defines is missing.
#
#   A decision is {action, why, rule or team, inject}: the rule, or the team's element, that
#   decided. The reason that is shown is the team's own, or else why, followed by the rule's
#   name or, where nothing decided, by what was asked for.
#
#   The engine denies more than this file does: an input that cannot be read (ParseInput), a
#   body that was not read (body.go), and, after this file's answer, what no policy can allow
#   (floor.go) and what is over a limit (limits.go). Its function settle has these steps in
#   their order. Observe mode (observe.go) is one of them: it lets a denied request pass.
package sallyport

import data.sallyport.contributed as team
import input.rules

# The first that holds: malformed > deny (team, rule) > governed but not authorised > approve (team,
# rule) > authorise > allow > not to be read > tunnel > the team's allow; nothing matches: deny. One
# whose answer names a rule that is not there, as rules.govern[0], does not hold.
decision := {"action": "deny", "team": malformed, "error": malformed.error} if {
	team.allow != set()
	is_malformed
} else := {"action": "deny", "team": min(team.deny)} if {
	team.deny != set()
} else := {"action": "deny", "why": "denied by rule", "rule": rules.deny[0]} if {
	rules.deny
} else := {"action": "deny", "why": "no egressAuth rule of this destination allows it; see rule", "rule": rules.govern[0]} if {
	not rules.authorise
} else := {"action": approval, "team": min(team.approve), "inject": credentials} if {
	team.approve != set()
} else := {"action": "approve", "why": "an approval is needed by rule", "rule": rules.approve[0], "inject": credentials} if {
	rules.approve
} else := {"action": "allow", "why": "allowed by rule", "rule": rules.authorise[0], "inject": credentials} if {
	rules.authorise
} else := {"action": "allow", "why": "allowed by rule", "rule": rules.allow[0], "inject": credentials} if {
	rules.allow
} else := {"action": "allow", "why": "allowed, but not unread, by rule", "rule": rules.tunnel[0], "inject": credentials} if {
	rules.read
} else := {"action": unread, "why": "allowed by rule", "rule": rules.tunnel[0], "inject": credentials} if {
	rules.tunnel
} else := {"action": opened, "why": "allowed by the team's policy", "team": min(team_allows), "inject": credentials} if {
	count(team_allows) > 0
} else := {"action": "deny", "why": "no rule allows"}

# A credential goes into a request, and into nothing else.
credentials contains rule.inject if {
	input.phase == "request"
	some rule in rules.authorise
}

credentials contains given if {
	input.phase == "request"
	some given in team.inject
}

# A name may be looked up before anybody is asked.
approval := "allow" if {
	input.phase == "dns"
} else := "approve"

# A tunnel is read where the team's Rego allows it too.
unread := "allow" if {
	input.protocol != "other"
	count(team_allows) > 0
} else := "tunnel"

# What the team's Rego allows is read, if it can be.
opened := "tunnel" if {
	input.protocol == "other"
} else := "allow"

# A team's allow speaks about TLS unless it lists other protocols.
team_allows contains allow if {
	input.phase == "dns"
	some allow in team.allow
}

team_allows contains allow if {
	some allow in team.allow
	input.protocol in object.get(allow, "protocols", ["tls"])
}

malformed := {
	"rule": "sallyport.team",
	"reason": "the team's policy is malformed, so everything is denied",
	"error": sprintf("an allow must be {\"rule\": …, \"reason\": …, \"protocols\": […]}, got %v", [min({allow | some allow in team.allow; not well_formed(allow)})]),
}

is_malformed if {
	some allow in team.allow
	not well_formed(allow)
}

well_formed(allow) if {
	is_object(allow)
	is_string(allow.rule)
	is_string(object.get(allow, "reason", ""))
	is_array(object.get(allow, "protocols", []))
}
