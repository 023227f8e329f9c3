package workerapi

import "sallyport/internal/roots"

// ViewVariable and ReadVariable are the environment of a worker without a root
// directory of its own: where its view is, and which of the host's files it may
// read (a list of paths).
const (
	ViewVariable = "SALLYPORT_VIEW"
	ReadVariable = "SALLYPORT_READ"
)

// DocumentPath and TeamPath are where the supervisor puts a policy in the
// worker's root: the document, and the folder of the team's Rego.
func DocumentPath(revision string) string { return "/policy/" + revision + "/document.json" }
func TeamPath(revision string) string     { return "/policy/" + revision + "/team" }

// HostFiles are the host's files that a worker sees: those that Go's resolver
// reads, and the system's bundles of authorities.
func HostFiles() []string {
	return append(roots.Bundles(), "/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf")
}
