package docker

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

// authority is a certificate authority of a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T, subject pkix.Name) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	must.OK(t, err)
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               subject,
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must.OK(t, err)
	cert, err := x509.ParseCertificate(der)
	must.OK(t, err)
	return &authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// leaf returns certificate and key of a server, in PEM.
func (a *authority) leaf(t *testing.T, host string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2),
		DNSNames:     []string{host},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, a.cert, &key.PublicKey, a.key)
	must.OK(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	must.OK(t, err)
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})...)
}

// derive makes an image from the base by a script, and changes of its
// configuration. It uses runc, which forks ten times faster.
func (l *testEngine) derive(t *testing.T, ref, script string, changes ...string) string {
	t.Helper()
	return l.deriveFrom(t, "", ref, script, changes...)
}

func (l *testEngine) deriveFrom(t *testing.T, image, ref, script string, changes ...string) string {
	t.Helper()
	c := l.container(t, image)
	c.Spec.Runtime = "runc"
	id := l.start(t, c)
	l.sh(t, id, "set -e\n"+script)
	_, err := l.engine.Client().ContainerCommit(t.Context(), containerName(id), client.ContainerCommitOptions{
		Reference: "sallyport/test:" + ref, Changes: append(changes, "USER root"),
	})
	must.OK(t, err)
	return "sallyport/test:" + ref
}

// The server runs inside the sandbox, on its own loopback: what is proven is
// whom the clients believe. Each has only the environment given.
const server = `
cd /srv && git init -q --bare repo && git -C repo update-server-info && echo hello >file
cat >serve.py <<END
import http.server, ssl, sys
port, pem = int(sys.argv[1]), sys.argv[2]
s = http.server.ThreadingHTTPServer(("127.0.0.1", port), http.server.SimpleHTTPRequestHandler)
c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
c.load_cert_chain(pem)
s.socket = c.wrap_socket(s.socket, server_side=True)
s.serve_forever()
END
echo 127.0.0.1 api.example.test >>/etc/hosts
python3 serve.py 8443 /memory/8443.pem >/dev/null 2>&1 &
python3 serve.py 9443 /memory/9443.pem >/dev/null 2>&1 &
for port in 8443 9443; do until env -i curl -sk https://api.example.test:$port/file >/dev/null; do sleep 0.1; done; done`

const fetch = `import urllib.request; print(urllib.request.urlopen("https://api.example.test:PORT/file").read().decode())`

var clients = map[string]string{
	"curl":            "curl -sS https://api.example.test:PORT/file",
	"curl, env -i":    "env -i curl -sS https://api.example.test:PORT/file",
	"wget":            "wget -qO- https://api.example.test:PORT/file",
	"wget, env -i":    "env -i wget -qO- https://api.example.test:PORT/file",
	"git":             "git ls-remote https://api.example.test:PORT/repo && echo hello",
	"git, env -i":     "env -i git ls-remote https://api.example.test:PORT/repo && echo hello",
	"Python":          "python3 -c '" + fetch + "'",
	"Python, env -i":  "env -i python3 -c '" + fetch + "'",
	"requests, pip":   `python3 -c 'from pip._vendor import requests; print(requests.get("https://api.example.test:PORT/file").text)'`,
	"OpenSSL, env -i": "env -i openssl verify /memory/PORT.pem",
}

// bare are the clients that have nothing but the image's files.
var bare = []string{"curl, env -i", "wget, env -i", "git, env -i", "Python, env -i", "OpenSSL, env -i"}

const private = `cat >/usr/local/share/ca-certificates/corp.crt <<END
OWN
END
update-ca-certificates >/dev/null 2>&1
`

func TestTrust(t *testing.T) {
	l := need(t)
	ours := newAuthority(t, pkix.Name{CommonName: "Sallyport  Test Root", Organization: []string{"Ünïcode Ltd"}})
	own := newAuthority(t, pkix.Name{CommonName: "Corp Private Root"})
	keys := t.TempDir()
	for name, a := range map[string]*authority{"8443.pem": ours, "9443.pem": own} {
		must.OK(t, os.WriteFile(filepath.Join(keys, name), a.leaf(t, "api.example.test"), 0o644))
	}
	// corp is an image that trusts the corporation's root.
	corp := l.derive(t, "corp", strings.ReplaceAll(private, "OWN", string(own.pem)))

	for name, tt := range map[string]struct {
		gvisor  bool
		of      string // the image
		script  string // what is done to the image
		changes []string
		own     bool     // the image trusts the corporation's root
		later   []string // each is run in the sandbox before the clients are tried again
		without bool     // of our root
	}{
		"debian": {gvisor: true},
		"private root": {
			of:  corp,
			own: true,
			later: []string{
				"update-ca-certificates --fresh >/dev/null 2>&1",
				// The package is installed again. dpkg replaces the package's files and
				// runs the package's script, which sets off the trigger.
				"rm -f /etc/ssl/certs/*.0 /etc/ssl/certs/*.pem /etc/ssl/certs/ca-certificates.crt && dpkg-reconfigure -f noninteractive ca-certificates >/dev/null 2>&1",
			},
		},
		"red hat": { // in gVisor it is TestTrustInImages's, of package e2e
			of: corp,
			script: `
mkdir -p /etc/pki/tls/certs /etc/pki/ca-trust/source/anchors /etc/pki/ca-trust/extracted/pem
mv /etc/ssl/certs/ca-certificates.crt /etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem
ln -s /etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem /etc/pki/tls/certs/ca-bundle.crt
ln -s /etc/pki/tls/certs/ca-bundle.crt /etc/pki/tls/cert.pem
rm -rf /etc/ssl/certs /usr/local/share/ca-certificates /usr/share/ca-certificates
ln -s ../pki/tls/certs /etc/ssl/certs
echo Red >/etc/redhat-release`,
			own: true,
			// The part of update-ca-trust that matters.
			later: []string{"cat /etc/pki/ca-trust/source/anchors/* >/tmp/new; cat /etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem >>/tmp/new; mv /tmp/new /etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"},
		},
		"no bundle": {
			script: "mkdir /aside; mv /usr/share/ca-certificates /etc/ca-certificates.conf /aside; rm -rf /etc/ssl/certs /usr/local/share/ca-certificates /etc/ssl/cert.pem /usr/lib/ssl/cert.pem",
			later:  []string{"mv /aside/ca-certificates.conf /etc; mv /aside/ca-certificates /usr/share; update-ca-certificates >/dev/null 2>&1; test $(grep -c BEGIN /etc/ssl/certs/ca-certificates.crt) -gt 100"},
		},
		"own variables": {
			of:     corp,
			script: "cp /usr/local/share/ca-certificates/corp.crt /opt/corp.pem",
			changes: []string{"ENV SSL_CERT_FILE=/opt/corp.pem", "ENV REQUESTS_CA_BUNDLE=/opt/corp.pem",
				"ENV CURL_CA_BUNDLE=/opt/absent.pem"},
			own: true,
		},
		"control: no root of ours": {of: corp, own: true, without: true},
	} {
		t.Run(name, func(t *testing.T) {
			image := tt.of
			if tt.script != "" {
				image = l.deriveFrom(t, image, strings.ReplaceAll(name, " ", "-"), tt.script, tt.changes...)
			}
			c := l.container(t, image)
			c.Trust = ours.pem
			if tt.without {
				c.Trust = nil
			}
			if !tt.gvisor {
				c.Spec.Runtime = "runc"
			}
			c.Mounts = []sandbox.Mount{{Source: keys, Target: "/memory", ReadOnly: true}}
			id := l.start(t, c)
			l.sh(t, id, server)
			check := func(programs []string) {
				t.Helper()
				for _, program := range programs {
					out, code := l.try(t, id, strings.ReplaceAll(clients[program], "PORT", "8443"))
					if (code == 0) == tt.without {
						t.Errorf("%s, our root: ended with %d: %s", program, code, out)
					}
				}
				for _, program := range []string{"curl, env -i", "Python, env -i"} {
					out, code := l.try(t, id, strings.ReplaceAll(clients[program], "PORT", "9443"))
					if (code == 0) != tt.own {
						t.Errorf("%s, the image's root: ended with %d: %s", program, code, out)
					}
				}
			}
			check(slices.Collect(maps.Keys(clients)))
			if len(tt.changes) > 0 {
				if out, code := l.try(t, id, "curl -sS --cacert $SSL_CERT_FILE https://api.example.test:9443/file"); code != 0 {
					t.Errorf("the image's own bundle lost its root: %s", out)
				}
			}
			for _, script := range tt.later {
				l.sh(t, id, script)
				check(bare)
			}
		})
	}
}
