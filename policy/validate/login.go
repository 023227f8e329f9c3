package validate

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	"sallyport/policy"
	"sallyport/policy/finding"
)

// logins checks the logins of an injection.
func (v *validator) logins(path string, in *policy.Inject) {
	if s := in.SSH; s != nil {
		v.ssh(path+".ssh", s)
	}
	for _, l := range []struct {
		key string
		*policy.LoginInject
	}{{"postgres", in.Postgres}, {"redis", in.Redis}} {
		if l.LoginInject != nil {
			if l.key == "postgres" && l.Username == "" {
				v.say(finding.BadInject, path+".postgres", "has no username", `write username: and the role to log in as, or "{{ .username }}"`)
			}
			v.template(path+"."+l.key+".username", l.Username, false)
			v.template(path+"."+l.key+".password", l.Password, true)
		}
	}
}

// ssh checks a login to an SSH server. Without its keys anybody on the way could be it.
func (v *validator) ssh(path string, s *policy.SSHInject) {
	if !policy.IsLabel(s.User) {
		v.say(finding.BadInject, path, fmt.Sprintf("%q is not a user", s.User), "write user: and the name to log in with, as git")
	}
	if len(s.HostKeys) == 0 {
		v.say(finding.BadInject, path, "has no host keys, so that anybody on the way could be the server",
			`write hostKeys: and the keys that the server's administrator publishes, as "ssh-ed25519 AAAA…"`)
	}
	for i, text := range s.HostKeys {
		at := fmt.Sprintf("%s.hostKeys[%d]", path, i)
		key, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(text))
		switch {
		case err != nil || len(options) > 0 || len(rest) > 0 || strings.ContainsAny(text, "\r\n"):
			v.say(finding.BadInject, at, "is not a public key of SSH", `write its type and base64, without the host's name, as "ssh-ed25519 AAAA…"`)
		case strings.Contains(key.Type(), "-cert-"):
			v.say(finding.BadInject, at, "is a certificate", "write the server's own public key")
		case key.Type() == ssh.InsecureKeyAlgoDSA: //nolint:staticcheck // refused
			v.say(finding.BadInject, at, "is a DSA key, which is too weak", "write another of the server's keys")
		}
	}
}

// login checks that a rule which logs in by a protocol of its own has nothing of HTTP.
func (v *validator) login(path string, e policy.EgressAuthRule) {
	var p policy.Protocol
	if e.Inject != nil {
		p = e.Inject.Protocol()
	}
	if !p.IsLogin() {
		v.methods(path, e.Methods)
		return
	}
	no := func(given bool, key string) {
		if given {
			v.say(finding.NeverMatches, path+"."+key, fmt.Sprintf("is of no use over %s", p), "remove it")
		}
	}
	no(e.RawPath, "rawPath")
	no(e.Headers != nil, "headers")
	no(e.Cookies != "", "cookies")
	no(e.Body != nil, "body")
	if e.Own != "" {
		v.say(finding.NeverMatches, path+".own", fmt.Sprintf("the gateway logs in over %s itself, and nothing that the sandbox logs in with goes on to the server", p), "remove it")
	}
	if p != policy.ProtocolSSH {
		no(e.Methods != nil, "methods")
		return
	}
	for i, m := range e.Methods {
		if at := fmt.Sprintf("%s.methods[%d]", path, i); !slices.Contains(policy.SSHMethods, m) {
			fix := "write some of " + strings.Join(policy.SSHMethods, ", ")
			if near := finding.Nearest(m, policy.SSHMethods); near != "" {
				fix = "did you mean " + near + "?"
			}
			v.say(finding.NeverMatches, at, fmt.Sprintf("%q is nothing that is done over SSH", m), fix)
		}
	}
}
