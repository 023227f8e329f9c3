package config

import (
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"

	"sallyport/internal/hostname"
)

// API says which callers, besides root on the control socket, may use the daemon's API.
type API struct {
	// Listen is host:port, where API keys are asked for, over TLS. Default: none.
	// Example: 0.0.0.0:8443
	Listen string `yaml:"listen"`
	// Certificate and Key are PEM files, of a chain and of its key. Default: one
	// that the daemon makes; `sallyport status` shows its fingerprint.
	// Example: api.pem
	Certificate string `yaml:"certificate"`
	// Key is the PEM file of Certificate's key, which nobody else can read (0600).
	// Example: api.key
	Key string `yaml:"key"`
	// Users are those of this host who may open the control socket, by name or
	// number, with their scopes: read, run, approve, policy, secrets, admin. Root
	// has admin, which is all of them.
	// Example: {alice: [approve, read]}
	Users map[string][]string `yaml:"users"`
}

// Remote is the daemon that the command line calls instead of the one on this host.
// The flags --host, --key-file and --fingerprint override it.
type Remote struct {
	// Host is the daemon's address.
	// Example: https://sallyport.example.com:8443
	Host string `yaml:"host"`
	// KeyFile holds the API key, for nobody else to read.
	// Example: /home/alice/.config/sallyport.key
	KeyFile string `yaml:"keyFile"`
	// Fingerprint is that of the daemon's certificate. Default: the system's
	// authorities vouch for it.
	// Example: sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae
	Fingerprint string `yaml:"fingerprint"`
}

// Webhook is a server that gets each lifecycle event as a signed POST.
type Webhook struct {
	// URL is where events are sent, by POST.
	// Example: https://hooks.example.com/sallyport
	URL string `yaml:"url"`
	// Events are the types that are sent, as in sandbox.started; * stands for any
	// run of characters. Default: all.
	// Example: [sandbox.*, approval.asked]
	Events []string `yaml:"events"`
	// SecretFile holds what the requests are signed with: whsec_ and Base64 of 24
	// to 64 bytes (Standard Webhooks). Nobody else can read it (0600).
	// Example: /etc/sallyport/hook.secret
	SecretFile string `yaml:"secretFile"`
	// Addresses are what may be connected to besides public addresses, and the only
	// ones for a URL that begins with http.
	// Example: [10.20.0.0/16]
	Addresses []netip.Prefix `yaml:"addresses"`
}

const maxWebhooks = 16

var fingerprint = regexp.MustCompile(`^(?i:sha256:)?([0-9A-Fa-f]{2}:?){31}[0-9A-Fa-f]{2}$`)

// Scopes are the scopes of package api. A test there holds the two together.
var Scopes = []string{"read", "run", "approve", "policy", "secrets", "admin"}

func (v *validator) api(a API) {
	if a.Listen != "" {
		v.listen("api.listen", a.Listen)
	} else if a.Certificate != "" || a.Key != "" {
		v.fail("api.listen", "is missing, so the certificate is of no use", "write listen: 0.0.0.0:8443")
	}
	if (a.Certificate == "") != (a.Key == "") {
		v.fail("api", "has one of certificate and key", "write both, or none for a certificate that is made")
	}
	for name, has := range a.Users {
		at := "api.users." + name
		if len(has) == 0 {
			v.fail(at, "has no scope", "write some of read, run, approve, policy, secrets, admin")
		}
		for _, s := range has {
			v.oneOf(at, s, Scopes...)
		}
	}
}

func (v *validator) remote(r Remote) {
	if r.Host == "" {
		if r.KeyFile != "" || r.Fingerprint != "" {
			v.fail("remote.host", "is missing", "write host: https://sallyport.example.com:8443")
		}
		return
	}
	if u, err := hostname.ParseURL(r.Host); err != nil || u.Scheme != "https" {
		v.fail("remote.host", fmt.Sprintf("%q is not a daemon's address", r.Host), "write https://host:port")
	}
	if r.KeyFile == "" {
		v.fail("remote.keyFile", "is missing", "write the path of a file that holds an API key")
	}
	if r.Fingerprint != "" && !fingerprint.MatchString(r.Fingerprint) {
		v.fail("remote.fingerprint", fmt.Sprintf("%q is not a fingerprint", r.Fingerprint), "write sha256: and 64 hexadecimal digits")
	}
}

func (v *validator) webhooks(list []Webhook) {
	if len(list) > maxWebhooks {
		v.fail("webhooks", fmt.Sprintf("are %d, more than %d", len(list), maxWebhooks), "have one server pass them on")
	}
	var seen []string
	for i, w := range list {
		at := fmt.Sprintf("webhooks[%d]", i)
		u, err := hostname.ParseURL(w.URL)
		switch {
		case err != nil && strings.Contains(w.URL, "@"):
			v.fail(at+".url", "has a user or password in it", "write it without: requests are signed with secretFile")
		case err != nil:
			v.fail(at+".url", fmt.Sprintf("%q is %v", w.URL, err), "write one as https://hooks.example.com/sallyport")
		case u.Scheme == "http" && len(w.Addresses) == 0:
			v.fail(at+".url", "sends events in the clear", "write https://"+u.Host+", or name its addresses where the network is yours")
		case slices.Contains(seen, w.URL):
			v.fail(at+".url", "is there twice", "write its events in one entry")
		}
		seen = append(seen, w.URL)
		for _, e := range w.Events {
			if _, err := path.Match(e, ""); err != nil || e == "" {
				v.fail(at+".events", fmt.Sprintf("%q is not a type of events", e), "write one as sandbox.*")
			}
		}
		if w.SecretFile == "" {
			v.fail(at+".secretFile", "is missing, and nobody could tell the events from forged ones", "write the path of a file with whsec_ and the Base64 of 32 random bytes")
		}
	}
}
