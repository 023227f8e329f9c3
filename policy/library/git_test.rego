package sallyport.library.git_test

import data.sallyport.library.git
import data.sallyport.testing

test_fetch_and_push_by_url if {
	every case in [
		["GET", "https://github.com/Acme/App.git/info/refs?service=git-upload-pack", "fetch", "acme/app"],
		["POST", "https://github.com/acme/app.git/git-upload-pack", "fetch", "acme/app"],
		["POST", "https://github.com/acme/app/git-upload-pack", "fetch", "acme/app"],
		["POST", "https://gitlab.com/acme/group/sub/app.git/git-upload-pack", "fetch", "acme/group/sub/app"],
		["POST", "https://bitbucket.org/acme/app.git/git-upload-pack", "fetch", "acme/app"],
		["POST", "https://codeberg.org/acme/app/git-upload-pack", "fetch", "acme/app"],
		["POST", "https://github.com/acme/app.git/git-receive-pack", "push", "acme/app"],
		["POST", "https://gitlab.com/acme/group/app.git/git-receive-pack?x=1", "push", "acme/group/app"],
		["POST", "https://github.com/acme/app.git/info/lfs/objects/batch", "lfs_batch", "acme/app"],
		["POST", "https://github.com/acme/app.git/info/lfs/locks", "lfs_lock", "acme/app"],
		["GET", "https://github.com/acme/app.git/info/lfs/locks?path=x", "lfs_lock", "acme/app"],
		["POST", "https://github.com/acme/app.git/info/lfs/locks/7/unlock", "lfs_lock", "acme/app"],
		["GET", "https://github.com/acme/app/archive/refs/tags/v1.tar.gz", "download", "acme/app"],
		["GET", "https://github.com/acme/app/releases/download/v1/app.tgz", "download", "acme/app"],
		["GET", "https://codeload.github.com/acme/app/tar.gz/refs/heads/main", "download", "acme/app"],
		["GET", "https://codeload.github.com/acme/app/legacy.zip/main", "download", "acme/app"],
		["GET", "https://raw.githubusercontent.com/acme/app/main/README.md", "download", "acme/app"],
		["GET", "https://gitlab.com/acme/g/app/-/archive/v1/app-v1.zip", "download", "acme/g/app"],
		["GET", "https://bitbucket.org/acme/app/get/v1.zip", "download", "acme/app"],
		["GET", "https://codeberg.org/acme/app/raw/branch/main/x", "download", "acme/app"],
		["GET", "https://api.github.com/repos/acme/app", "api_read", "acme/app"],
		["GET", "https://api.github.com/repos/acme/app/issues?state=open", "api_read", "acme/app"],
		["POST", "https://api.github.com/repos/Acme/app/issues", "api_write", "acme/app"],
		["GET", "https://api.bitbucket.org/2.0/repositories/acme/app/commits", "api_read", "acme/app"],
		["PATCH", "https://codeberg.org/api/v1/repos/acme/app", "api_write", "acme/app"],
	] {
		[method, url, meaning, repo] := case
		told(testing.request(method, url, {})) == {meaning}
		git.repo == repo with input as testing.request(method, url, {})
	}
}

# told is which of the rules hold.
told(given) := {name |
	some name, holds in {
		"fetch": {1 | git.fetch with input as given},
		"push": {1 | git.push with input as given},
		"lfs_batch": {1 | git.lfs_batch with input as given},
		"lfs_lock": {1 | git.lfs_lock with input as given},
		"download": {1 | git.download with input as given},
		"api_read": {1 | git.api_read with input as given},
		"api_write": {1 | git.api_write with input as given},
	}
	count(holds) > 0
}

test_gitlab_projects_have_numbers if {
	given := testing.get("https://gitlab.com/api/v4/projects/278964/issues")
	git.project == 278964 with input as given
	told(given) == {"api_read"}
	told(testing.delete("https://gitlab.com/api/v4/projects/278964")) == {"api_write"}
	not git.repo with input as given
	not git.project with input as testing.get("https://gitlab.com/api/v4/projects")
	not git.project with input as testing.get("https://github.com/api/v4/projects/1")
}

test_gitlab_projects_have_names if {
	every url in [
		"https://gitlab.com/api/v4/projects/Acme%2Fapp",
		"https://gitlab.com/api/v4/projects/acme%2fapp/issues?state=opened",
		"https://gitlab.com/api/v4/projects/acme%2Fapp/repository/files/src%2Fmain.go/raw",
	] {
		every given in testing.readings(testing.get(url)) {
			git.repo == "acme/app" with input as given
			told(given) == {"api_read"}
			not git.project with input as given
		}
	}
	every given in testing.readings(testing.post("https://gitlab.com/api/v4/projects/acme%2Fteam%2Fapp/issues", {})) {
		git.repo == "acme/team/app" with input as given
		told(given) == {"api_write"}
	}
	every given in testing.readings(testing.get("https://gitlab.com/api/v4/projects/278964/repository/files/a%2Fb")) {
		git.project == 278964 with input as given
		not git.repo with input as given
	}
	every url in [
		"https://gitlab.com/api/v4/projects/acme/app",
		"https://gitlab.com/api/v4/projects/278964%2Faccess_tokens",
		"https://gitlab.com/api/v4%2Fprojects/acme%2Fapp",
		"https://gitlab.com/api/v4/projects/acme%2Fapp%2F",
		"https://github.com/api/v4/projects/acme%2Fapp",
	] {
		given := testing.get(url)
		told(given) == set()
		not git.repo with input as given
	}
}

test_nothing_else_is_told if {
	every case in [
		["POST", "https://github.com/acme/app.git/info/refs?service=git-upload-pack"],
		["GET", "https://github.com/acme/app.git/info/refs"],
		["GET", "https://github.com/acme/app.git/info/refs?service=git-upload-pack&x=y"],
		["GET", "https://github.com/acme/app.git/git-upload-pack"],
		["GET", "https://github.com/acme/app.git/git-upload-pack?service=x"],
		["GET", "https://github.com/acme/app.git/info/lfs/objects/batch"],
		["POST", "https://github.com/acme/app.git/info/lfs/objects/batch?x=y"],
		["POST", "https://github.com/acme/app.git/info/lfs/objects/other"],
		["POST", "https://github.com/acme/app.git/git-upload-pack?x=y"],
		["POST", "https://github.com/acme/group/app.git/git-upload-pack"],
		["POST", "https://github.com/app.git/git-upload-pack"],
		["POST", "https://gitlab.com/acme/-/app.git/git-upload-pack"],
		["POST", "https://git.example.com/acme/app.git/git-upload-pack"],
		["POST", "https://git.example.com/acme/app.git/git-receive-pack"],
		["POST", "https://github.com.example.com/acme/app.git/git-upload-pack"],
		["POST", "https://api.github.com/graphql"],
		["GET", "https://api.github.com/user"],
		["GET", "https://api.github.com/reposx/acme/app"],
		["PUT", "https://github.com/acme/app/archive/x"],
		["GET", "https://github.com/acme/app/archive/x?token=y"],
		["GET", "https://raw.githubusercontent.com/acme/app"],
		["GET", "https://github.com/acme/app"],
	] {
		[method, url] := case
		told(testing.request(method, url, {})) == set()
	}
}

test_push_is_told_whatever_is_around_it if {
	every url in [
		"https://github.com/acme/app.git/git-receive-pack/",
		"https://github.com/acme/app.git/GIT-RECEIVE-PACK",
		"https://github.com/x/git-receive-pack?service=git-upload-pack",
	] {
		"push" in told(testing.post(url, {}))
	}
}

test_contact if {
	every host in ["github.com", "api.github.com", "codeload.github.com", "gitlab.com", "api.bitbucket.org"] {
		git.contact with input as testing.lookup(host)
		git.contact with input as testing.connect(host, 443, "tls")
	}
	not git.contact with input as testing.lookup("github.io")
	not git.contact with input as testing.get("https://github.com/")
}

test_hosts_of_ones_own if {
	own := {"git.corp.example": "gitea", "ghe.corp.example": "github", "github.com": "gitlab"}
	fetch := testing.post("https://git.corp.example/acme/app.git/git-upload-pack", {})
	git.fetch with input as fetch with data.library.git.hosts as own
	git.repo == "acme/app" with input as fetch with data.library.git.hosts as own
	call := testing.get("https://ghe.corp.example/api/v3/repos/acme/app/pulls")
	git.api_read with input as call with data.library.git.hosts as own
	git.contact with input as testing.lookup("ghe.corp.example") with data.library.git.hosts as own

	# The public ones are what they are.
	given := testing.post("https://github.com/a/b/c.git/git-upload-pack", {})
	not git.fetch with input as given with data.library.git.hosts as own
}
