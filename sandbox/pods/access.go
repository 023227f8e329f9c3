package pods

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/goccy/go-yaml"
)

// serviceAccount is where Kubernetes mounts a pod's service account.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// access is how an API server is reached.
type access struct {
	server string
	tls    func() *tls.Config // for a new connection
	token  func() (string, error)
}

// kubeconfig is as much of the file's format as daemons' files have: no command that gets a
// token, and no password.
type kubeconfig struct {
	Current  string `yaml:"current-context"`
	Contexts []struct {
		Name    string
		Context struct{ Cluster, User string }
	}
	Clusters []struct {
		Name    string
		Cluster struct {
			Server string
			CA     string `yaml:"certificate-authority"`
			CAData string `yaml:"certificate-authority-data"`
		}
	}
	Users []struct {
		Name string
		User struct {
			Token     string
			TokenFile string `yaml:"tokenFile"`
			Cert      string `yaml:"client-certificate"`
			CertData  string `yaml:"client-certificate-data"`
			Key       string `yaml:"client-key"`
			KeyData   string `yaml:"client-key-data"`
		}
	}
}

// readAccess reads a kubeconfig file or, with "", the service account of the pod that this
// process is in.
func readAccess(path string, log *slog.Logger) (a access, err error) {
	if path == "" {
		host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
		if host == "" || port == "" {
			return a, errors.New("this process is in no pod: set pods.kubeconfig, or run in a pod with a service account")
		}
		a.server, a.token = "https://"+net.JoinHostPort(host, port), fromFile(filepath.Join(serviceAccount, "token"))
		a.tls, err = trusting(filepath.Join(serviceAccount, "ca.crt"), "", log)
		return a, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return a, err
	}
	var k kubeconfig
	if err := yaml.Unmarshal(text, &k); err != nil {
		return a, fmt.Errorf("%s: %w", path, err)
	}
	beside := func(p string) string {
		if p == "" || filepath.IsAbs(p) {
			return p
		}
		return filepath.Join(filepath.Dir(path), p)
	}
	for _, x := range k.Contexts {
		if x.Name != k.Current {
			continue
		}
		for _, c := range k.Clusters {
			if c.Name == x.Context.Cluster {
				a.server = c.Cluster.Server
				if a.tls, err = trusting(beside(c.Cluster.CA), c.Cluster.CAData, log); err != nil {
					return a, fmt.Errorf("%s: cluster %q: %w", path, c.Name, err)
				}
			}
		}
		for _, u := range k.Users {
			if u.Name != x.Context.User {
				continue
			}
			if u.User.Token+u.User.TokenFile+u.User.Cert+u.User.CertData == "" {
				return a, fmt.Errorf("%s: user %q has neither token, tokenFile nor client-certificate: commands (exec) and passwords are not read", path, u.Name)
			}
			a.token = func() (string, error) { return u.User.Token, nil }
			if u.User.TokenFile != "" {
				a.token = fromFile(beside(u.User.TokenFile))
			}
			if a.tls == nil || u.User.Cert+u.User.CertData == "" {
				continue
			}
			cert, key, trusts := beside(u.User.Cert), beside(u.User.Key), a.tls
			certificate := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { // files are renewed
				public, err := pemOf(cert, u.User.CertData)
				if err != nil {
					return nil, err
				}
				private, err := pemOf(key, u.User.KeyData)
				if err != nil {
					return nil, err
				}
				pair, err := tls.X509KeyPair(public, private)
				return &pair, err
			}
			a.tls = func() *tls.Config {
				c := trusts()
				c.GetClientCertificate = certificate
				return c
			}
		}
	}
	if a.server == "" || a.token == nil {
		return a, fmt.Errorf("%s: its current-context %q names no cluster and user in it", path, k.Current)
	}
	return a, nil
}

// fromFile reads a token for each request: kubelet renews it.
func fromFile(path string) func() (string, error) {
	return func() (string, error) {
		text, err := os.ReadFile(path)
		return strings.TrimSpace(string(text)), err
	}
}

// trusting returns configurations that trust the authorities of a kubeconfig's cluster. Each is
// by the file as it is then, since kubelet renews it; a file without a certificate leaves the
// authorities of before.
func trusting(file, data string, log *slog.Logger) (func() *tls.Config, error) {
	read := func() (*x509.CertPool, error) {
		if file == "" && data == "" {
			return nil, nil // the system's authorities
		}
		text, err := pemOf(file, data)
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(text) {
			return nil, errors.New("the API server's authority is not a PEM certificate")
		}
		return roots, nil
	}
	var last atomic.Pointer[x509.CertPool]
	roots, err := read()
	last.Store(roots)
	return func() *tls.Config {
		if roots, err := read(); err == nil {
			last.Store(roots)
		} else {
			log.Error("the API server's authority cannot be read again: that of before is trusted", "file", file, "error", err)
		}
		return &tls.Config{RootCAs: last.Load(), MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	}, err
}

// pemOf returns the PEM that a kubeconfig has in itself, in Base64, or in a file.
func pemOf(file, data string) ([]byte, error) {
	if data != "" {
		return base64.StdEncoding.DecodeString(data)
	}
	return os.ReadFile(file)
}
