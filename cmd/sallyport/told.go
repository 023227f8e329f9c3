package main

import (
	"context"
	"errors"
	"strings"

	"sallyport/audit"
	"sallyport/sandbox"
)

// told looks for an event in the audit log.
func (d *daemon) told(ctx context.Context, deed sandbox.Deed) (bool, error) {
	q := audit.Query{Sandbox: deed.Sandbox, Kind: audit.KindLifecycle, Since: deed.Since}
	for e, err := range audit.Read(ctx, auditDir(d.cfg), q) {
		if damage := new(audit.DamageError); errors.As(err, &damage) {
			continue // which who reads the log is told
		}
		if err != nil {
			return false, err
		}
		x := e.Unmapped.Sallyport
		if x.SandboxID == deed.ID && x.State == deed.State && (deed.Session == "" || x.Session == deed.Session) && strings.HasPrefix(e.Detail, deed.Detail) {
			return true, nil
		}
	}
	return false, nil
}
