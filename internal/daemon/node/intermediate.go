package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"sallyport/gateway/ca"
	"sallyport/internal/config"
	"sallyport/internal/durable"
	"sallyport/internal/secretfile"
)

const (
	// retryAfter is when it is tried again to renew an intermediate.
	retryAfter = 10 * time.Second
	// maxKey bounds the file of an intermediate's key, in bytes.
	maxKey = 1 << 20
)

// intermediate is a node's certificate authority, from files or signed by Vault.
type intermediate struct {
	Options
	files config.Print // as they were read
	renew time.Time    // when Vault is asked again
	retry time.Time    // not before, after a failure
}

// signed is what a mount of Vault has signed, sealed on disk with its key.
type signed struct {
	Certificate, Key []byte
	Mount            string
}

func (n *intermediate) open(ctx context.Context) (*ca.Issuer, error) {
	if n.Config.CA.Vault == nil {
		return n.read()
	}
	kept, err := n.kept()
	if err == nil && time.Now().Before(n.renew) {
		return kept, nil
	}
	state := "renewed"
	if err != nil {
		state = "issued"
	}
	i, serr := n.sign(ctx, state)
	if serr != nil && err == nil {
		n.Logger.Warn("this node's intermediate cannot be renewed yet", "until", kept.Expires(), "error", serr)
		return kept, nil
	}
	return i, serr
}

func (n *intermediate) print() config.Print {
	return config.NewPrint(n.Config.CA.Certificate, n.Config.CA.Key)
}

// read reads the configuration's files.
func (n *intermediate) read() (*ca.Issuer, error) {
	before := n.print() // what changes meanwhile shows against this
	certificate, err := os.ReadFile(n.Config.CA.Certificate)
	var key []byte
	if err == nil {
		key, err = secretfile.ReadMounted(n.Config.CA.Key, maxKey)
	}
	var i *ca.Issuer
	if err == nil {
		i, err = ca.NewIssuer(certificate, key, time.Now())
	}
	if err != nil {
		return nil, fmt.Errorf("pods.ca: %w", err)
	}
	n.files = before
	return i, nil
}

// again reads changed files, and records that.
func (n *intermediate) again(ctx context.Context) (*ca.Issuer, error) {
	i, err := n.read()
	if err != nil {
		return nil, err
	}
	return i, n.record(ctx, i, "renewed")
}

func (n *intermediate) file() string { return filepath.Join(n.Dir, "issuer.sealed") }

// kept returns what Vault has signed before. Below another mount's root it is due for renewal.
func (n *intermediate) kept() (*ca.Issuer, error) {
	plain, err := durable.ReadSealed(n.file(), n.Key)
	if err != nil {
		return nil, err
	}
	var s signed
	if err := json.Unmarshal(plain, &s); err != nil {
		return nil, err
	}
	i, err := ca.NewIssuer(s.Certificate, s.Key, time.Now())
	if n.renew = (time.Time{}); err == nil && s.Mount == n.Config.CA.Vault.Mount {
		n.renew = i.Renew()
	}
	return i, err
}

// sign has Vault sign a new key, which never leaves this host. It records that before it
// keeps what Vault has signed.
func (n *intermediate) sign(ctx context.Context, state string) (*ca.Issuer, error) {
	request, key, err := ca.NewRequest()
	if err != nil {
		return nil, err
	}
	from := n.Config.CA.Vault
	chain, err := n.Vault().SignIntermediate(ctx, from.Mount, "Sallyport node "+n.Config.Node, request, time.Duration(from.TTL))
	if err != nil {
		return nil, fmt.Errorf("pods.ca.vault: %w", err)
	}
	i, err := ca.NewIssuer(chain, key, time.Now())
	if err != nil {
		return nil, fmt.Errorf("pods.ca.vault: %w", err)
	}
	plain, err := json.Marshal(signed{chain, key, from.Mount})
	if err != nil {
		return nil, err
	}
	if err := durable.MkdirAll(n.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := n.record(ctx, i, state); err != nil {
		return nil, err
	}
	if err := durable.WriteSealed(n.file(), n.Key, plain); err != nil {
		return nil, err
	}
	n.renew = i.Renew()
	return i, nil
}

// record writes to the audit log that this node has an intermediate.
func (n *intermediate) record(ctx context.Context, i *ca.Issuer, state string) error {
	e := n.Event("ca/"+n.Config.Node, "this node's intermediate", state)
	e.Detail = "good until " + i.Expires().UTC().Format(time.DateTime)
	return n.Record(ctx, e)
}

// renewed returns an intermediate in the place of the one before, or nil while it is not
// time. Pods trust the root above both, and notice nothing.
func (n *intermediate) renewed(ctx context.Context, now time.Time) *ca.Issuer {
	again, due := n.again, n.print() != n.files
	if n.Config.CA.Vault != nil {
		again, due = func(ctx context.Context) (*ca.Issuer, error) { return n.sign(ctx, "renewed") }, now.After(n.renew)
	}
	if !due || now.Before(n.retry) {
		return nil
	}
	i, err := again(ctx)
	if err != nil {
		n.retry, n.files, n.renew = now.Add(retryAfter), config.Print{}, time.Time{}
		if ctx.Err() == nil {
			n.Logger.Error("this node's intermediate is not renewed; the one before is used for as long as it is good", "error", err)
		}
		return nil
	}
	return i
}
