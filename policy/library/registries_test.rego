package sallyport.library.registries_test

import data.sallyport.library.registries
import data.sallyport.testing

test_downloads if {
	every case in [
		["https://registry.npmjs.org/react", "npm", "react"],
		["https://registry.npmjs.org/react/18.2.0", "npm", "react"],
		["https://registry.npmjs.org/react/-/react-18.2.0.tgz", "npm", "react"],
		["https://registry.npmjs.org/@types/node/-/node-20.1.0.tgz", "npm", "@types/node"],
		["https://registry.yarnpkg.com/@babel/core", "npm", "@babel/core"],
		["https://pypi.org/simple/requests/", "pypi", "requests"],
		["https://pypi.org/pypi/requests/json", "pypi", "requests"],
		["https://pypi.org/pypi/requests/2.31.0/json", "pypi", "requests"],
		["https://index.crates.io/se/rd/serde", "crates", "serde"],
		["https://index.crates.io/3/l/log", "crates", "log"],
		["https://index.crates.io/2/rc", "crates", "rc"],
		["https://static.crates.io/crates/serde/serde-1.0.0.crate", "crates", "serde"],
		["https://static.crates.io/crates/serde/1.0.0/download", "crates", "serde"],
		["https://crates.io/api/v1/crates/serde/1.0.0/download", "crates", "serde"],
		["https://proxy.golang.org/golang.org/x/net/@v/list", "go", "golang.org/x/net"],
		["https://proxy.golang.org/github.com/!burnt!sushi/toml/@v/v1.3.2.zip", "go", "github.com/!burnt!sushi/toml"],
		["https://proxy.golang.org/golang.org/x/net/@latest", "go", "golang.org/x/net"],
		["https://rubygems.org/info/rails", "rubygems", "rails"],
	] {
		[url, ecosystem, name] := case
		given := testing.get(url)
		registries.download with input as given
		registries.ecosystem == ecosystem with input as given
		registries.package_name == name with input as given
		not registries.publish with input as given
	}
}

# npm's own requests for a scoped package. A scope is part of a name in each reading.
test_scoped_packages if {
	every url in [
		"https://registry.npmjs.org/@acme%2fapp",
		"https://registry.npmjs.org/@acme%2Fapp/1.0.0",
		"https://registry.npmjs.org/@acme/app/-/@acme%2fapp-1.0.0.tgz",
	] {
		every given in testing.readings(testing.get(url)) {
			registries.download with input as given
			registries.package_name == "@acme/app" with input as given
			not registries.publish with input as given
		}
	}
	every given in testing.readings(testing.put("https://registry.npmjs.org/@acme%2fapp", {})) {
		registries.publish with input as given
		not registries.download with input as given
	}
	every url in [
		"https://registry.npmjs.org/react%2f18.2.0",
		"https://registry.npmjs.org/react%2f-%2freact-18.2.0.tgz",
		"https://registry.npmjs.org/-%2fnpm/v1/user",
		"https://pypi.org/simple%2frequests",
	] {
		given := testing.get(url)
		given
		not registries.download with input as given
	}
}

test_downloads_without_a_name if {
	every url in [
		"https://pypi.org/simple/",
		"https://files.pythonhosted.org/packages/aa/bb/cc/requests-2.31.0-py3-none-any.whl",
		"https://index.crates.io/config.json",
		"https://proxy.golang.org/sumdb/sum.golang.org/tile/8/0/x001/234",
		"https://sum.golang.org/lookup/golang.org/x/net@v0.1.0",
		"https://sum.golang.org/latest",
		"https://index.rubygems.org/versions",
		"https://rubygems.org/gems/rails-7.0.0.gem",
		"https://rubygems.org/specs.4.8.gz",
		"https://repo.maven.apache.org/maven2/org/slf4j/slf4j-api/2.0.9/slf4j-api-2.0.9.jar",
		"http://deb.debian.org/debian/dists/bookworm/InRelease",
		"http://deb.debian.org/debian/pool/main/g/git/git_2.39.2-1.1_amd64.deb",
		"https://deb.debian.org/debian-security/dists/bookworm-security/InRelease",
	] {
		given := testing.get(url)
		registries.download with input as given
		not registries.package_name with input as given
	}
}

test_what_is_no_download if {
	every given in [
		testing.get("https://registry.npmjs.org/react?secret=x"),
		testing.get("https://registry.npmjs.org/-/npm/v1/tokens"),
		testing.get("https://registry.npmjs.org/-/whoami"),
		testing.get("https://registry.npmjs.org/"),
		testing.get("https://pypi.org/manage/account/"),
		testing.get("https://crates.io/api/v1/me"),
		testing.get("https://proxy.golang.org/golang.org/x/net"),
		testing.get("https://rubygems.org/api/v1/gems.json"),
		testing.get("https://deb.debian.org/other/x"),
		testing.get("https://registry.npmjs.org.example.com/react"),
		testing.post("https://registry.npmjs.org/react", {}),
	] {
		not registries.download with input as given
	}
}

test_publish if {
	every given in [
		testing.put("https://registry.npmjs.org/react", {}),
		testing.put("https://registry.npmjs.org/-/package/react/dist-tags/latest", {}),
		testing.delete("https://registry.npmjs.org/react/-rev/1-x"),
		testing.put("https://registry.npmjs.org/-/user/org.couchdb.user:x", {}),
		testing.post("https://registry.npmjs.org/-/npm/v1/tokens", {}),
		testing.post("https://upload.pypi.org/legacy/", {}),
		testing.put("https://crates.io/api/v1/crates/new", {}),
		testing.delete("https://crates.io/api/v1/crates/serde/1.0.0/yank"),
		testing.post("https://rubygems.org/api/v1/gems", {}),
		testing.delete("https://rubygems.org/api/v1/gems/yank"),
		testing.post("https://central.sonatype.com/api/v1/publisher/upload", {}),
		testing.put("https://s01.oss.sonatype.org/service/local/staging/deploy/maven2/x", {}),
	] {
		registries.publish with input as given
		not registries.download with input as given
		not registries.audit with input as given
	}
	not registries.publish with input as testing.post("https://example.com/legacy/", {})
	not registries.publish with input as testing.lookup("pypi.org")
	not registries.publish with input as testing.lookup("upload.pypi.org")
	not registries.package_name with input as testing.put("https://registry.npmjs.org/react", {})
}

test_audit_is_no_publishing if {
	every url in [
		"https://registry.npmjs.org/-/npm/v1/security/advisories/bulk",
		"https://registry.npmjs.org/-/npm/v1/security/audits/quick",
	] {
		registries.audit with input as testing.post(url, {})
		not registries.publish with input as testing.post(url, {})
	}
	not registries.audit with input as testing.get("https://registry.npmjs.org/-/npm/v1/security/audits")
	not registries.audit with input as testing.post("https://pypi.org/-/npm/v1/security/audits", {})
}

test_contact if {
	registries.contact with input as testing.lookup("pypi.org")
	registries.contact with input as testing.connect("deb.debian.org", 80, "http")
	not registries.contact with input as testing.lookup("upload.pypi.org")
	not registries.contact with input as testing.get("https://pypi.org/simple/")
}

test_mirrors if {
	own := {"mirror.corp.example": "deb.debian.org", "other.corp.example": "nowhere"}
	given := testing.get("http://mirror.corp.example/debian/dists/bookworm/InRelease")
	registries.download with input as given with data.library.registries.hosts as own
	registries.contact with input as testing.lookup("mirror.corp.example") with data.library.registries.hosts as own
	not registries.contact with input as testing.lookup("other.corp.example") with data.library.registries.hosts as own
	put := testing.put("http://mirror.corp.example/debian/x", {})
	registries.publish with input as put with data.library.registries.hosts as own
}
