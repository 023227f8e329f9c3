package sallyport.team.packages

import data.sallyport.library.registries

# How a registry is reached: apt comes without TLS and checks signatures itself.
protocols := ["tls", "http"] if {
	registries.ecosystem == "debian"
} else := ["tls"]

allow contains {"rule": "packages", "reason": "packages come from here", "protocols": protocols} if registries.contact

allow contains {"rule": "packages", "reason": "packages may be downloaded", "protocols": protocols} if registries.download

# npm sends what is installed, to learn what is known against it.
allow contains {"rule": "audit", "reason": "npm may look for advisories"} if registries.audit

deny contains sprintf("%s was withdrawn", [registries.package_name]) if {
	registries.package_name in data.packages.withdrawn[registries.ecosystem]
}

# Nothing allows this; so it is said why.
deny contains "packages are published by people, not from sandboxes" if registries.publish
