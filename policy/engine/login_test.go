package engine_test

import (
	"strings"
	"testing"

	"sallyport/internal/config"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/engine"
)

const sshRules = `
egress:
- {destination: tunnel.example.com:22, action: tunnel}
- {destination: asked.example.com:22, action: approve}
egressAuth:
- {name: clone, destination: git.example.com, authRef: key, paths: ["/org/*"], inject: {ssh: {user: git, hostKeys: [KEY]}}}
- {name: push, destination: git.example.com, authRef: key, paths: ["/org/mine.git"], methods: [git-receive-pack], inject: {ssh: {user: git, hostKeys: [KEY]}}}
- {destination: asked.example.com, authRef: key, inject: {ssh: {user: git, hostKeys: [KEY]}}}
- {destination: db.example.com, authRef: login, inject: {postgres: {username: agent, password: "{{ .password }}"}}}
- {destination: cache.example.com, authRef: login, inject: {redis: {username: agent, password: "{{ .password }}"}}}
credentials: [{name: key}, {name: login}]
`

const pinned = `"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"`

func TestLogins(t *testing.T) {
	c, err := config.Parse("sallyport.yaml", []byte(strings.ReplaceAll(sshRules, "KEY", pinned)))
	must.OK(t, err)
	p, err := engine.Compile(t.Context(), c.Document, engine.Options{})
	must.OK(t, err)
	connect := func(host string, port uint16, protocol policy.Protocol) policy.Input {
		return policy.Input{Phase: policy.PhaseConnect, Destination: policy.Destination{Host: host, Port: port}, Protocol: protocol}
	}
	request := func(host, scheme, method, path string) policy.Input {
		return policy.Input{
			Phase: policy.PhaseRequest, Destination: policy.Destination{Host: host, Port: policy.Protocol(scheme).Port()},
			Request: &policy.Request{Method: method, Scheme: scheme, Path: path, Size: -1},
		}
	}
	for name, tt := range map[string]struct {
		in         policy.Input
		action     policy.Action
		authorised bool
		credential string
	}{
		"a name":                           {in: policy.Input{Phase: policy.PhaseDNS, Destination: policy.Destination{Host: "git.example.com"}}, action: policy.Allow},
		"SSH":                              {in: connect("git.example.com", 22, policy.ProtocolSSH), action: policy.Allow, authorised: true},
		"other bytes where a rule logs in": {in: connect("git.example.com", 22, policy.ProtocolOther), action: policy.Deny},
		"TLS where a rule logs in":         {in: connect("git.example.com", 22, policy.ProtocolTLS), action: policy.Deny},
		"SSH on another port":              {in: connect("git.example.com", 443, policy.ProtocolSSH), action: policy.Deny},
		"SSH in a tunnel":                  {in: connect("tunnel.example.com", 22, policy.ProtocolSSH), action: policy.Tunnel},
		"Redis in a tunnel":                {in: connect("tunnel.example.com", 22, policy.ProtocolRedis), action: policy.Tunnel},
		"SSH that is asked about":          {in: connect("asked.example.com", 22, policy.ProtocolSSH), action: policy.Approve, authorised: true},
		"a clone that is asked about":      {in: request("asked.example.com", "ssh", "git-upload-pack", "/a"), action: policy.Approve, credential: "key"},
		"PostgreSQL":                       {in: connect("db.example.com", 5432, policy.ProtocolPostgres), action: policy.Allow, authorised: true},
		"its login":                        {in: request("db.example.com", "postgres", "connect", "/app"), action: policy.Allow, credential: "login"},
		"Redis":                            {in: connect("cache.example.com", 6379, policy.ProtocolRedis), action: policy.Allow, authorised: true},
		"Redis where PostgreSQL is":        {in: connect("db.example.com", 5432, policy.ProtocolRedis), action: policy.Deny},
		"a clone":                          {in: request("git.example.com", "ssh", "git-upload-pack", "/org/x.git"), action: policy.Allow, credential: "key"},
		"a push":                           {in: request("git.example.com", "ssh", "git-receive-pack", "/org/x.git"), action: policy.Deny},
		"a push that a rule allows":        {in: request("git.example.com", "ssh", "git-receive-pack", "/org/mine.git"), action: policy.Allow, credential: "key"},
		"another repository":               {in: request("git.example.com", "ssh", "git-upload-pack", "/else/x.git"), action: policy.Deny},
		"a shell":                          {in: request("git.example.com", "ssh", "shell", "/"), action: policy.Deny},
		"no method of SSH":                 {in: request("git.example.com", "ssh", "GET", "/org/x.git"), action: policy.Deny},
	} {
		t.Run(name, func(t *testing.T) {
			d := p.Decide(t.Context(), tt.in)
			credential := ""
			if len(d.Inject) == 1 {
				credential = d.Inject[0].Credential
			}
			if d.Action != tt.action || d.Authorised != tt.authorised || credential != tt.credential {
				t.Errorf("%s, authorised %t, with %q (%s), want %s, %t, %q", d.Action, d.Authorised, credential, d.Reason, tt.action, tt.authorised, tt.credential)
			}
		})
	}
}

// TestLoginIsChecked: what is wrong with a rule that logs in is said at load.
func TestLoginIsChecked(t *testing.T) {
	for name, tt := range map[string]struct{ rule, want string }{
		"no host key":              {`inject: {ssh: {user: git}}`, "has no host keys"},
		"a bad host key":           {`inject: {ssh: {user: git, hostKeys: ["git.example.com ssh-ed25519 AAAA"]}}`, "is not a public key"},
		"no user":                  {`inject: {ssh: {hostKeys: [KEY]}}`, "is not a user"},
		"two of them":              {`inject: {ssh: {user: git, hostKeys: [KEY]}, redis: {username: a, password: "{{ .p }}"}}`, "write exactly one"},
		"a method of HTTP":         {`methods: [GET], inject: {ssh: {user: git, hostKeys: [KEY]}}`, "is nothing that is done over SSH"},
		"a wrong method":           {`methods: [git-upload-pac], inject: {ssh: {user: git, hostKeys: [KEY]}}`, "did you mean git-upload-pack?"},
		"a body":                   {`body: {json: 1KiB}, inject: {ssh: {user: git, hostKeys: [KEY]}}`, "is of no use over ssh"},
		"a method of Redis":        {`methods: [connect], inject: {redis: {username: a, password: "{{ .p }}"}}`, "is of no use over redis"},
		"own of SSH":               {`own: deny, inject: {ssh: {user: git, hostKeys: [KEY]}}`, "the gateway logs in over ssh itself"},
		"own of PostgreSQL":        {`own: deny, inject: {postgres: {username: a, password: "{{ .p }}"}}`, "the gateway logs in over postgres itself"},
		"own of Redis":             {`own: deny, inject: {redis: {username: a, password: "{{ .p }}"}}`, "the gateway logs in over redis itself"},
		"no role":                  {`inject: {postgres: {password: "{{ .p }}"}}`, "has no username"},
		"a secret that is written": {`inject: {postgres: {username: a, password: hunter2}}`, "has nothing of the secret in it"},
	} {
		t.Run(name, func(t *testing.T) {
			text := "egressAuth: [{destination: git.example.com, authRef: key, " + strings.ReplaceAll(tt.rule, "KEY", pinned) + "}]\ncredentials: [{name: key}]\n"
			c, err := config.Parse("sallyport.yaml", []byte(text))
			if err == nil {
				_, err = engine.Compile(t.Context(), c.Document, engine.Options{})
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}
