package sallyport.team.previews_test

import data.sallyport.team.previews
import data.sallyport.testing

# A request to port 8000 of a sandbox.
visit(method, tags) := {
	"phase": "inbound",
	"sandbox": {"name": "web", "tags": tags},
	"protocol": "http",
	"destination": {"host": "web", "port": 8000},
	"request": {"method": method, "scheme": "http", "path": "/", "segments": [""], "query_keys": [], "headers": [], "size": 0},
}

test_frozen_is_read_only if {
	count(previews.deny) == 1 with input as visit("POST", {"team": "web", "frozen": "true"})
	count(previews.deny) == 0 with input as visit("GET", {"team": "web", "frozen": "true"})
}

test_others_are_not if count(previews.deny) == 0 with input as visit("POST", {"team": "web"})

test_what_leaves_is_not_spoken_of if {
	given := object.union(testing.post("https://api.example.com/", {}), {"sandbox": {"name": "web", "tags": {"frozen": "true"}}})
	count(previews.deny) == 0 with input as given
}
