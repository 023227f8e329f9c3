package trust

import (
	"bytes"
	"context"
	"fmt"

	"golang.org/x/crypto/ssh"
)

// knownHosts is where OpenSSH looks for the keys of hosts, for all users.
const knownHosts = "/etc/ssh/ssh_known_hosts"

// hosts has OpenSSH take the root's key for one that certifies hosts: the gateway shows a
// certificate of it for each host whose SSH it speaks. A line of the image about a host
// still counts.
func (r *Root) hosts(ctx context.Context, f Files) error {
	key, err := ssh.NewPublicKey(r.cert.PublicKey)
	if err != nil {
		return fmt.Errorf("the key to certify hosts by: %w", err)
	}
	line := append([]byte("@cert-authority * "), ssh.MarshalAuthorizedKey(key)...)
	at, h, content, err := f.Read(ctx, knownHosts)
	switch {
	case err != nil:
		return err
	case h == nil:
		f.Put(knownHosts, nil, line)
	case !bytes.Contains(content, line):
		f.Put(at, h, append(lines(content), line...))
	}
	return nil
}
