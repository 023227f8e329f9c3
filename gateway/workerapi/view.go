package workerapi

import "slices"

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
// reads, and the system's bundles of authorities (crypto/x509).
func HostFiles() []string { return slices.Clone(hostFiles) }

var hostFiles = []string{
	"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf",
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/pki/tls/cacert.pem",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
}
