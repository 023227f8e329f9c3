package gatehouse

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"sallyport/internal/jail"
	"sallyport/policy"
)

// ViewVariable and ReadVariable tell a process without a root of its own where
// the view is, and which of the host's files it may read.
const (
	ViewVariable = "SALLYPORT_VIEW"
	ReadVariable = "SALLYPORT_READ"
)

// documentRoot is where the view is as the process sees it.
func documentRoot(own bool) string {
	if own {
		return ""
	}
	return os.Getenv(ViewVariable)
}

// resolverFiles are what Go's resolver reads.
var resolverFiles = []string{"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf"}

// bundles are where crypto/x509 looks for the system's authorities.
var bundles = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/pki/tls/cacert.pem",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
}

// systemFiles are the host's that the process reads where it sees the host.
func systemFiles() []string {
	files := slices.Concat(resolverFiles, bundles, []string{"/etc/ssl", "/etc/pki", os.Getenv(ViewVariable)}, filepath.SplitList(os.Getenv(ReadVariable)))
	return slices.DeleteFunc(files, func(f string) bool { return f == "" })
}

// rootFiles lists the files of authorities that a document's rules name.
func rootFiles(doc policy.Document) (files []string) {
	add := func(u *policy.Upstream) {
		if u == nil {
			return
		}
		for _, f := range []string{u.Roots, u.ProxyRoots} {
			if f != "" && !slices.Contains(files, f) {
				files = append(files, f)
			}
		}
	}
	for _, e := range doc.Egress {
		add(e.Upstream)
	}
	for _, e := range doc.EgressAuth {
		add(e.Upstream)
	}
	return files
}

// certificates is what the process sees of a roots file: a key beside them, or
// a path that was meant for something else, is not shown.
func certificates(data []byte) (kept []byte) {
	for {
		var b *pem.Block
		if b, data = pem.Decode(data); b == nil {
			return kept
		}
		if b.Type == "CERTIFICATE" {
			kept = append(kept, pem.EncodeToMemory(&pem.Block{Type: b.Type, Bytes: b.Bytes})...)
		}
	}
}

// show puts a document, the team's Rego and the roots that it names into the
// view.
func show(v *jail.View, doc policy.Document, revision string) error {
	text, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	if err := v.Write(DocumentPath(revision), text); err != nil {
		return err
	}
	if doc.Policy.Dir != "" {
		if err := showTeam(v, doc.Policy.Dir, revision); err != nil {
			return fmt.Errorf("reading %s: %w", doc.Policy.Dir, err)
		}
	}
	copies := []jail.Copy{}
	for _, f := range slices.Concat(resolverFiles, bundles) {
		copies = append(copies, jail.Copy{Path: f})
	}
	for _, f := range rootFiles(doc) {
		if !slices.ContainsFunc(copies, func(c jail.Copy) bool { return c.Path == f }) {
			copies = append(copies, jail.Copy{Path: f, Keep: certificates})
		}
	}
	return v.Show(copies...)
}

// showTeam copies what takes part in a policy. That it is what the daemon
// compiled is seen by the revision.
func showTeam(v *jail.View, dir, revision string) error {
	return policy.ReadTeam(dir, func(name string, text []byte) error {
		return v.Write(filepath.Join(TeamPath(revision), name), text)
	})
}
