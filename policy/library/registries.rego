# METADATA
# title: Package registries
# description: |
#   What a request means to the public registries of npm, PyPI, crates.io, Go,
#   RubyGems, Maven Central and Debian: a download, or something that publishes.
#
#     allow contains {"rule": "packages", "protocols": ["tls", "http"]} if registries.contact
#
#     allow contains {"rule": "packages", "protocols": ["tls", "http"]} if registries.download
#
#   Every rule is about input. What is not recognised is undefined: write what may
#   pass, not what may not. What publishes is recognised generously, what reads
#   strictly: a download has no query. A mirror of one's own is named in
#   data.library.registries.hosts by whose paths it has, as
#   {"mirror.corp.example": "deb.debian.org"}.
package sallyport.library.registries

# contact is the lookup of, and the connection to, a host that packages come from.
contact if {
	input.phase in {"dns", "connect"}
	site
}

# site is the public host whose paths the destination has.
site := input.destination.host if {
	paths[input.destination.host]
} else := mirrored if {
	mirrored := data.library.registries.hosts[input.destination.host]
	paths[mirrored]
}

ecosystem := {
	"registry.npmjs.org": "npm",
	"registry.yarnpkg.com": "npm",
	"pypi.org": "pypi",
	"files.pythonhosted.org": "pypi",
	"index.crates.io": "crates",
	"static.crates.io": "crates",
	"crates.io": "crates",
	"proxy.golang.org": "go",
	"sum.golang.org": "go",
	"rubygems.org": "rubygems",
	"index.rubygems.org": "rubygems",
	"repo1.maven.org": "maven",
	"repo.maven.apache.org": "maven",
	"deb.debian.org": "debian",
	"security.debian.org": "debian",
	"archive.debian.org": "debian",
}[site]

# What is downloaded, by host; a group is the package's name.
paths := {
	# npm/registry, docs/REGISTRY-API.md and docs/responses/package-metadata.md:
	# /PACKAGE, /PACKAGE/VERSION, /PACKAGE/-/FILE.tgz. npm asks for a scoped package as
	# /@scope%2fname, of which both readings are that package.
	"registry.npmjs.org": npm,
	"registry.yarnpkg.com": npm,
	# "Simple repository API" (PEP 503, PEP 691) and "JSON API" of docs.pypi.org.
	"pypi.org": `^/(?:simple/(?:([\w.-]+)/?)?|pypi/([\w.-]+)/(?:[\w.!+-]+/)?json)$`,
	"files.pythonhosted.org": `^/packages/[\w./+-]+$`,
	# "Index Format" and "Registry Index" of the Cargo book.
	"index.crates.io": `^/(?:config\.json|1/([\w-])|2/([\w-]{2})|3/[\w-]/([\w-]{3})|[\w-]{2}/[\w-]{2}/([\w-]{4,}))$`,
	"static.crates.io": `^/crates/([\w-]+)/(?:[\w.+-]+\.crate|[\w.+-]+/download)$`,
	# "Web API" of the Cargo book.
	"crates.io": `^/api/v1/crates/([\w-]+)(?:/[\w.+-]+/download)?$`,
	# "Go Modules Reference", GOPROXY protocol.
	"proxy.golang.org": `^/(?:([\w.~!/-]+)/(?:@v/(?:list|[\w.~!+-]+\.(?:info|mod|zip))|@latest)|sumdb/sum\.golang\.org/(?:supported|latest|lookup/[\w.~!/@+-]+|tile/[\w./-]+))$`,
	# "Go Modules Reference", checksum database.
	"sum.golang.org": `^/(?:supported|latest|lookup/[\w.~!/@+-]+|tile/[\w./-]+)$`,
	# "Compact Index API" and "RubyGems.org API" of guides.rubygems.org.
	"rubygems.org": gems,
	"index.rubygems.org": gems,
	# "Maven Repository Layout".
	"repo1.maven.org": `^/maven2/[\w./+-]+$`,
	"repo.maven.apache.org": `^/maven2/[\w./+-]+$`,
	# "DebianRepository/Format" of wiki.debian.org.
	"deb.debian.org": debian,
	"security.debian.org": debian,
	"archive.debian.org": debian,
}

npm := `^/((?:@[\w.~-]+(?:/|%2F))?[A-Za-z0-9~][\w.~-]*)(?:/-/(?:@[\w.~-]+(?:/|%2F))?[\w.~+-]+\.tgz|/[A-Za-z0-9][\w.+-]*)?$`

gems := `^/(?:versions|names|info/([\w.-]+)|gems/[\w.-]+\.gem|(?:prerelease_|latest_)?specs\.4\.8\.gz|quick/Marshal\.4\.8/[\w.-]+\.gemspec\.rz)$`

debian := `^/debian(?:-security|-ports|-backports|-debug)?/(?:dists|pool)/[\w./+~:%-]+$`

# download reads packages and what is said about them.
download if {
	input.request.method in {"GET", "HEAD"}
	count(input.request.query_keys) == 0
	regex.match(paths[site], input.request.path)
}

# package_name is what a download is of, where the path says so.
package_name := replace(name, "%2F", "/") if {
	download
	some groups in regex.find_all_string_submatch_n(paths[site], input.request.path, 1)
	some name in array.slice(groups, 1, count(groups))
	name != ""
}

# audit sends the list of what is installed, to learn what is known against it:
# npm-audit(1).
audit if {
	ecosystem == "npm"
	input.request.method == "POST"
	regex.match(`^/-/npm/v1/security/(advisories/bulk|audits(/quick)?)$`, input.request.path)
}

# publish changes what others download, or who may: whatever writes to a registry.
# npm: PUT /PACKAGE, PUT /-/package/PACKAGE/dist-tags/TAG ("REGISTRY-API.md",
# libnpmpublish); crates.io: PUT /api/v1/crates/new, DELETE …/yank ("Web API");
# RubyGems: POST /api/v1/gems, DELETE /api/v1/gems/yank ("RubyGems.org API").
publish if {
	site
	input.request
	not input.request.method in {"GET", "HEAD", "OPTIONS"}
	not audit
}

# And all that is asked of hosts which are there for it. PyPI: POST /legacy/
# ("Upload API"); Maven Central: POST /api/v1/publisher/upload ("Publisher Portal
# API"), and the staging hosts that came before.
publish if {
	input.request
	input.destination.host in {
		"upload.pypi.org",
		"central.sonatype.com",
		"ossrh-staging-api.central.sonatype.com",
		"oss.sonatype.org",
		"s01.oss.sonatype.org",
	}
}
