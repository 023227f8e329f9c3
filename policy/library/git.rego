# METADATA
# title: Git hosting
# description: |
#   What a request means to GitHub, GitLab, Bitbucket, Gitea and Forgejo: fetch or
#   push, of which repository, download or call of the API.
#
#     allow contains {"rule": "acme"} if {
#     	git.fetch
#     	git.repo in {"acme/app", "acme/docs"}
#     }
#
#   Every rule is about input. What is not recognised is undefined: write what may
#   pass, not what may not. What writes is recognised generously, what reads
#   strictly. Hosts of one's own are named in data.library.git.hosts, as
#   {"git.corp.example": "gitea"}: github, gitlab, bitbucket or gitea.
#
#   The values of query parameters are in no input, and so `?service=` of a list of
#   refs does not tell a fetch from a push: the list is part of fetch, and a push is
#   told by what follows it.
package sallyport.library.git

# contact is the lookup of, and the connection to, one of the hosts. What is asked
# there is decided when it is asked.
contact if {
	input.phase in {"dns", "connect"}
	known
}

known if service

known if apis[input.destination.host]

known if contents[input.destination.host]

service := public[input.destination.host] if {
	public[input.destination.host]
} else := data.library.git.hosts[input.destination.host]

public := {
	"github.com": "github",
	"gitlab.com": "gitlab",
	"bitbucket.org": "bitbucket",
	"codeberg.org": "gitea",
}

# asked is what a URL of a repository is asked for. $GIT_URL/info/refs,
# /git-upload-pack and /git-receive-pack: gitprotocol-http(5), "Smart Clients";
# $GIT_URL.git/info/lfs: "Git LFS Server Discovery" of git-lfs/docs/api.
asked := {"repo": lower(name), "for": what} if {
	some [_, name, what] in regex.find_all_string_submatch_n(
		`^/(.+?)(?:\.git)?/(info/refs|git-upload-pack|git-receive-pack|info/lfs/.+)$`,
		input.request.path,
		1,
	)
	regex.match(names[service], name)
}

# A name is the owner's and the repository's: GitLab has groups inside of groups
# ("Subgroups"), where a segment of one hyphen ends the name ("Routing").
names := {
	"github": `^[\w.][\w.-]*/[\w.][\w.-]*$`,
	"bitbucket": `^[\w.][\w.-]*/[\w.][\w.-]*$`,
	"gitea": `^[\w.][\w.-]*/[\w.][\w.-]*$`,
	"gitlab": `^[\w.][\w.-]*(/[\w.][\w.-]*)+$`,
}

# fetch reads a repository: the list of its refs, and what they lead to.
fetch if {
	asked.for == "info/refs"
	input.request.method == "GET"
	input.request.query_keys == ["service"]
}

fetch if {
	asked.for == "git-upload-pack"
	input.request.method == "POST"
	count(input.request.query_keys) == 0
}

# push writes to a repository.
push if {
	service
	regex.match(`/git-receive-pack/?$`, lower(input.request.path))
}

# lfs_batch asks where to read large files, or where to write them: its body says
# which ("Batch API"). They then come from or go to another host by GET or PUT.
lfs_batch if {
	asked.for == "info/lfs/objects/batch"
	input.request.method == "POST"
	count(input.request.query_keys) == 0
}

# lfs_lock is about locks of large files ("File Locking API").
lfs_lock if regex.match(`^info/lfs/locks(/|$)`, asked.for)

# download reads an archive, a file or a release's asset without git.
download if {
	downloaded
	input.request.method in {"GET", "HEAD"}
	count(input.request.query_keys) == 0
}

# codeload and raw: "Downloading source code archives" and "REST API endpoints for
# repository contents" of GitHub's documentation.
contents := {
	"codeload.github.com": `^/([\w.][\w.-]*/[\w.][\w.-]*)/(?:legacy\.)?(?:zip|tar\.gz)/.+$`,
	"raw.githubusercontent.com": `^/([\w.][\w.-]*/[\w.][\w.-]*)/[^/]+/.+$`,
}

# GitHub: "Downloading source code archives", "Linking to releases". GitLab:
# "Download source code", "Release assets". Bitbucket: "Download an archive".
# Gitea: the same paths as GitHub's.
pages := {
	"github": `^/([\w.][\w.-]*/[\w.][\w.-]*)/(?:archive|raw|releases/download)/.+$`,
	"gitea": `^/([\w.][\w.-]*/[\w.][\w.-]*)/(?:archive|raw|releases/download)/.+$`,
	"bitbucket": `^/([\w.][\w.-]*/[\w.][\w.-]*)/(?:get|raw|downloads)/.+$`,
	"gitlab": `^/([\w.][\w.-]*(?:/[\w.][\w.-]*)+)/-/(?:archive|raw)/.+$`,
}

downloaded := lower(name) if {
	some [_, name] in regex.find_all_string_submatch_n(downloading, input.request.path, 1)
}

downloading := contents[input.destination.host] if {
	contents[input.destination.host]
} else := pages[service]

# api is a call about one repository. GitHub: "REST API endpoints for repositories",
# below /api/v3 on a host of one's own ("Getting started with the REST API" of
# GitHub Enterprise Server); Bitbucket: "The Bitbucket Cloud REST API,
# Repositories"; Gitea: "API Usage".
api := {"repo": lower(name)} if {
	some [_, name] in regex.find_all_string_submatch_n(called, input.request.path, 1)
}

called := apis[input.destination.host] if {
	apis[input.destination.host]
} else := {
	"github": `^/api/v3/repos/([\w.][\w.-]*/[\w.][\w.-]*)(?:/.*)?$`,
	"gitea": `^/api/v1/repos/([\w.][\w.-]*/[\w.][\w.-]*)(?:/.*)?$`,
}[service]

apis := {
	"api.github.com": `^/repos/([\w.][\w.-]*/[\w.][\w.-]*)(?:/.*)?$`,
	"api.bitbucket.org": `^/2\.0/repositories/([\w.][\w.-]*/[\w.][\w.-]*)(?:/.*)?$`,
}

# project is the number of GitLab's project that a call of its API is about
# ("Projects API").
project := number if {
	service == "gitlab"
	some [_, digits] in regex.find_all_string_submatch_n(`^/api/v4/projects/([1-9][0-9]{0,17})(?:/.*)?$`, input.request.path, 1)
	number := to_number(digits)
}

# named is the project where it is named by its path, in one segment: "REST API",
# "Namespaced paths". It is read from what was sent: decoded, nothing says where the
# name ends. One that begins like a number is none, since decoded it is about the
# project of that number.
named := lower(replace(name, "%2F", "/")) if {
	service == "gitlab"
	some [_, name] in regex.find_all_string_submatch_n(`^/api/v4/projects/([\w.][\w.-]*(?:%2F[\w.][\w.-]*)+)(?:/.*)?$`, input.request.raw_path, 1)
	not regex.match(`^[0-9]+%2F`, name)
}

api_read if {
	calling
	input.request.method in {"GET", "HEAD"}
}

api_write if {
	calling
	not input.request.method in {"GET", "HEAD"}
}

calling if api

calling if project

calling if named

# repo is the repository that any of these is about, as "owner/name" in lower case:
# hosts take capitals for the same letter. A project of GitLab's that a call names by
# its number has none.
repo := asked.repo

repo := downloaded

repo := api.repo

repo := named
