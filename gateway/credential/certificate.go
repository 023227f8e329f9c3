package credential

import (
	"cmp"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"net/http"
	"strings"
	"time"

	"sallyport/policy"
)

// certificateKind gives a client certificate in the TLS handshake with the upstream. The
// request itself has nothing of it: see Lease.Certificate.
type certificateKind policy.ClientCertificateInject

// The fields of a certificate and its key: ours, and those of Vault's PKI.
const (
	certificateField = "certificate"
	keyField         = "key"
	vaultKeyField    = "private_key"
	vaultChainField  = "ca_chain"
)

func (k certificateKind) compose(fields map[string]Secret) (*composed, error) {
	certificate, _, err := execute(cmp.Or(k.Certificate, "{{ ."+certificateField+" }}"), fields)
	if err != nil {
		return nil, fmt.Errorf("inject.clientCertificate.certificate: %w", err)
	}
	if chain, ok := fields[vaultChainField]; ok && k.Certificate == "" {
		certificate = strings.TrimSpace(certificate) + "\n" + chain.Reveal()
	}
	template := k.Key
	if template == "" {
		template = "{{ ." + keyField + " }}"
		if _, ok := fields[vaultKeyField]; ok {
			template = "{{ ." + vaultKeyField + " }}"
		}
	}
	key, used, err := execute(template, fields)
	if err != nil {
		return nil, fmt.Errorf("inject.clientCertificate.key: %w", err)
	}
	switch {
	case !isPEM(certificate):
		return nil, fmt.Errorf("%w: the certificate is not PEM: set the text from -----BEGIN CERTIFICATE----- on", ErrUnfit)
	case !isPEM(key):
		return nil, fmt.Errorf("%w: the key is not PEM: set the text from -----BEGIN PRIVATE KEY----- on, without a passphrase", ErrUnfit)
	}
	pair, err := tls.X509KeyPair([]byte(certificate), []byte(key))
	if err != nil {
		// Package tls says what does not fit, never what it is.
		return nil, fmt.Errorf("%w: the certificate and the key are not a pair: %w", ErrUnfit, err)
	}
	c := &composed{put: func(*http.Request) {}, certificate: &pair}
	c.fresh = func(now time.Time) error {
		switch leaf := pair.Leaf; {
		case now.After(leaf.NotAfter):
			return fmt.Errorf("%w: its client certificate expired on %s: set a new one", ErrUnfit, leaf.NotAfter.UTC().Format(time.RFC3339))
		case now.Before(leaf.NotBefore):
			return fmt.Errorf("%w: its client certificate is not good before %s: wait, or set this host's clock", ErrUnfit, leaf.NotBefore.UTC().Format(time.RFC3339))
		}
		return nil
	}
	return c.keeps(used, fields), nil
}

func (certificateKind) own(*http.Request) bool { return false }

func isPEM(text string) bool {
	block, _ := pem.Decode([]byte(text))
	return block != nil
}

// Certificate returns the client certificate that Apply has readied for the connection,
// nil where the credential is given in another way.
func (l *Lease) Certificate() *tls.Certificate {
	for _, c := range l.applied {
		if c.certificate != nil {
			return c.certificate
		}
	}
	return nil
}
