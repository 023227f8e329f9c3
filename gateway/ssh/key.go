package ssh

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"sallyport/gateway/credential"
	"sallyport/gateway/wire"
	"sallyport/policy"
)

func newKey(random io.Reader) (ssh.Signer, error) {
	_, key, err := ed25519.GenerateKey(random)
	if err != nil {
		return nil, err
	}
	return ssh.NewSignerFromKey(key)
}

// signer is what a secret logs in with: its private key, and its certificate if it has one.
func signer(fields map[string]credential.Secret) (ssh.Signer, error) {
	key, err := credential.ParseSSH(fields)
	if err != nil {
		return nil, fmt.Errorf("%w: the field %s is no private key that can be read: %w", wire.ErrSecret, credential.FieldPrivateKey, err)
	}
	line := fields[credential.FieldCertificate].Reveal()
	if line == "" {
		line = fields[credential.FieldSignedKey].Reveal()
	}
	if line == "" {
		return key, nil
	}
	public, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
	cert, ok := public.(*ssh.Certificate)
	if err != nil || !ok {
		return nil, fmt.Errorf("%w: the field %s is no certificate", wire.ErrSecret, credential.FieldCertificate)
	}
	with, err := ssh.NewCertSigner(cert, key)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", wire.ErrSecret, err)
	}
	return with, nil
}

// pinned is how to verify a server by the keys that a rule pins.
type pinned struct {
	keys       map[string]bool // marshalled
	algorithms []string
	impostor   bool // another was shown
}

func pin(lines []string) (*pinned, error) {
	p := &pinned{keys: map[string]bool{}}
	for _, line := range lines {
		key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
		if err != nil {
			return nil, fmt.Errorf("a host key of the rule: %w", err)
		}
		p.keys[string(key.Marshal())] = true
		if key.Type() == ssh.KeyAlgoRSA {
			p.algorithms = append(p.algorithms, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256)
		} else {
			p.algorithms = append(p.algorithms, key.Type())
		}
	}
	if len(p.keys) == 0 {
		return nil, errors.New("the rule pins no host key")
	}
	return p, nil
}

func (p *pinned) check(_ string, _ net.Addr, key ssh.PublicKey) error {
	if p.keys[string(key.Marshal())] {
		return nil
	}
	p.impostor = true
	return wire.ErrImpostor
}

// logIn makes the handshake with the server and logs in. The key signs nothing before the
// server is verified.
func logIn(far net.Conn, in *policy.SSHInject, key ssh.Signer, within time.Duration) (ssh.Conn, error) {
	p, err := pin(in.HostKeys)
	if err != nil {
		return nil, err
	}
	_ = far.SetDeadline(time.Now().Add(within))
	verified := false
	conn, channels, requests, err := ssh.NewClientConn(far, far.RemoteAddr().String(), &ssh.ClientConfig{
		User: in.User, Auth: []ssh.AuthMethod{ssh.PublicKeys(key)},
		HostKeyAlgorithms: p.algorithms, ClientVersion: version,
		HostKeyCallback: func(name string, at net.Addr, key ssh.PublicKey) error {
			err := p.check(name, at, key)
			verified = err == nil
			return err
		},
	})
	switch {
	case err == nil:
	case p.impostor, strings.Contains(err.Error(), "no common algorithm for host key"):
		return nil, wire.ErrImpostor
	case verified && strings.Contains(err.Error(), "unable to authenticate"):
		return nil, wire.ErrRefused
	default:
		return nil, err
	}
	_ = far.SetDeadline(time.Time{})
	go ssh.DiscardRequests(requests)
	go func() {
		for c := range channels { // a server has nothing to open here
			_ = c.Reject(ssh.Prohibited, "")
		}
	}()
	return conn, nil
}
