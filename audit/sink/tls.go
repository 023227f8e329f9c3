package sink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
)

// config is what connections to a receiver use.
func (t TLS) config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if len(t.Roots) > 0 {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(t.Roots) {
			return nil, errors.New("the authorities hold no PEM certificate")
		}
	}
	if len(t.Certificate) > 0 {
		pair, err := tls.X509KeyPair(t.Certificate, t.Key)
		if err != nil {
			return nil, fmt.Errorf("the client's certificate: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// secured returns dial with TLS on its connections, unless the sink is plain. Each has a
// session of its own: OpenSSL's servers refuse to resume one if they ask for client
// certificates and have no session ID context (SSL_CTX_set_session_id_context(3)), and
// rsyslog, which has none, then closes other connections too and loses what they brought.
func (c Config) secured(dial Dial) (Dial, error) {
	if c.Plain {
		return dial, nil
	}
	conf, err := c.TLS.config()
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		to := conf.Clone()
		if to.ServerName == "" {
			to.ServerName, _, _ = net.SplitHostPort(address)
		}
		secure := tls.Client(conn, to)
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, err
		}
		return secure, nil
	}, nil
}
