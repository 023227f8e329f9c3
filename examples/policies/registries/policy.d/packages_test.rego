package sallyport.team.packages_test

import data.sallyport.team.packages
import data.sallyport.testing

test_downloads if {
	every url in [
		"https://registry.npmjs.org/react/-/react-18.2.0.tgz",
		"https://pypi.org/simple/requests/",
		"http://deb.debian.org/debian/dists/bookworm/InRelease",
	] {
		{"packages"} == {offer.rule | some offer in packages.allow} with input as testing.get(url)
		count(packages.deny) == 0 with input as testing.get(url)
	}
}

# npm writes a scoped package so; each reading of it is decided about.
test_scoped_package if {
	every given in testing.readings(testing.get("https://registry.npmjs.org/@acme%2fapp")) {
		{"packages"} == {offer.rule | some offer in packages.allow} with input as given
		count(packages.deny) == 0 with input as given
	}
}

test_the_way_there if {
	{"packages"} == {offer.rule | some offer in packages.allow} with input as testing.lookup("pypi.org")
	{["tls"]} == {offer.protocols | some offer in packages.allow} with input as testing.connect("pypi.org", 443, "tls")
	{["tls", "http"]} == {offer.protocols | some offer in packages.allow} with input as testing.connect("deb.debian.org", 80, "http")
}

test_audit if {
	given := testing.post("https://registry.npmjs.org/-/npm/v1/security/advisories/bulk", {})
	{"audit"} == {offer.rule | some offer in packages.allow} with input as given
	count(packages.deny) == 0 with input as given
}

test_publishing if {
	packages.deny == {"packages are published by people, not from sandboxes"} with input as testing.post("https://upload.pypi.org/legacy/", {})
	count(packages.deny) == 1 with input as testing.put("https://registry.npmjs.org/react", {})
}

test_withdrawn if {
	packages.deny == {"event-stream was withdrawn"} with input as testing.get("https://registry.npmjs.org/event-stream")
	count(packages.deny) == 0 with input as testing.get("https://pypi.org/simple/event-stream/")
}

# What comes of it all under sallyport.yaml.
test_decisions if {
	every decision in testing.decisions([
		testing.lookup("registry.npmjs.org"),
		testing.connect("deb.debian.org", 80, "http"),
		testing.get("https://static.crates.io/crates/serde/1.0.0/download"),
		testing.get("https://registry.npmjs.org/@acme%2fapp"),
	]) {
		decision.action == "allow"
	}
	every decision in testing.decisions([
		testing.lookup("example.com"),
		testing.connect("pypi.org", 80, "http"),
		testing.get("https://pypi.org/manage/account/"),
		testing.get("https://registry.npmjs.org/event-stream"),
		testing.get("https://registry.npmjs.org/react%2f18.2.0"),
		testing.put("https://crates.io/api/v1/crates/new", {}),
	]) {
		decision.action == "deny"
	}
}
