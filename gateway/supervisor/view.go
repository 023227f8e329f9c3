package supervisor

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"path/filepath"
	"slices"

	"sallyport/gateway/workerapi"
	"sallyport/internal/jail"
	"sallyport/policy"
	"sallyport/policy/rego"
)

// rootFiles lists the files of authorities that a document's rules name.
func rootFiles(doc policy.Document) (files []string) {
	for _, u := range doc.Upstreams() {
		for _, f := range []string{u.Roots, u.ProxyRoots} {
			if f != "" && !slices.Contains(files, f) {
				files = append(files, f)
			}
		}
	}
	return files
}

// certificates keeps the certificates of a roots file: keys beside them, or a file that is
// something else, are not shown to the worker.
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

// show puts a document, the team's Rego and the roots files that it names into the view.
func show(v *jail.View, doc policy.Document, revision string) error {
	text, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	if err := v.Write(workerapi.DocumentPath(revision), text); err != nil {
		return err
	}
	if doc.Policy.Dir != "" {
		if err := showTeam(v, doc.Policy.Dir, revision); err != nil {
			return fmt.Errorf("reading %s: %w", doc.Policy.Dir, err)
		}
	}
	copies := []jail.Copy{}
	for _, f := range workerapi.HostFiles() {
		copies = append(copies, jail.Copy{Path: f})
	}
	for _, f := range rootFiles(doc) {
		if !slices.ContainsFunc(copies, func(c jail.Copy) bool { return c.Path == f }) {
			copies = append(copies, jail.Copy{Path: f, Keep: certificates})
		}
	}
	return v.Show(copies...)
}

// showTeam copies the team's files of a policy. The revision shows whether they are the
// ones that the daemon compiled.
func showTeam(v *jail.View, dir, revision string) error {
	return rego.ReadFolder(dir, func(name string, text []byte) error {
		return v.Write(filepath.Join(workerapi.TeamPath(revision), name), text)
	})
}
