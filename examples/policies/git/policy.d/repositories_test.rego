package sallyport.team.repositories_test

import data.sallyport.team.repositories
import data.sallyport.testing

url := "https://github.com/acme/app.git"

refs := testing.get(concat("", [url, "/info/refs?service=git-upload-pack"]))

push := testing.post(concat("", [url, "/git-receive-pack"]), {})

issue := testing.post("https://api.github.com/repos/acme/app/issues", {})

test_fetch if {
	every given in [
		refs,
		testing.post(concat("", [url, "/git-upload-pack"]), {}),
		testing.get("https://codeload.github.com/acme/docs/tar.gz/main"),
		testing.get("https://api.github.com/repos/Acme/App/pulls?state=open"),
	] {
		count(repositories.deny) == 0 with input as given
	}
}

test_push_is_for_the_team if {
	count(repositories.deny) == 0 with input as testing.from("a", {"team": "app"}, push)
	count(repositories.deny) == 1 with input as testing.from("a", {"team": "docs"}, push)
	count(repositories.deny) == 1 with input as push
}

test_issues_are_for_the_team if {
	count(repositories.deny) == 0 with input as testing.from("a", {"team": "app"}, issue)
	count(repositories.deny) == 1 with input as issue
	every given in [
		testing.delete("https://api.github.com/repos/acme/app"),
		testing.patch("https://api.github.com/repos/acme/app", {}),
		testing.put("https://api.github.com/repos/acme/app/contents/x", {}),
	] {
		count(repositories.deny) == 1 with input as testing.from("a", {"team": "app"}, given)
	}
}

test_nothing_else if {
	every given in [
		testing.post("https://github.com/evil/app.git/git-upload-pack", {}),
		testing.get("https://github.com/login"),
		testing.post("https://api.github.com/graphql", {}),
		testing.post("https://api.github.com/gists", {}),
	] {
		count(repositories.deny) == 1 with input as testing.from("a", {"team": "app"}, given)
	}
}

test_other_hosts_and_phases_are_not_spoken_about if {
	count(repositories.deny) == 0 with input as testing.lookup("github.com")
	count(repositories.deny) == 0 with input as testing.get("https://example.com/")
}

test_documentation if {
	given := testing.post("https://github.com/acme/docs.git/git-receive-pack", {})
	count(repositories.approve) == 1 with input as given
	count(repositories.approve) == 0 with input as push
}

# What comes of it all under sallyport.yaml.
test_decisions if {
	every decision in testing.decisions([refs, testing.from("a", {"team": "app"}, push)]) {
		decision.action == "allow"
		decision.rule == "github"
		decision.inject == {{"credential": "github", "rule": "github"}}
	}
	every decision in testing.decisions([push, testing.get("https://github.com/evil/app")]) {
		decision.action == "deny"
		decision.type == "rego"
	}
}
