package policy

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"sallyport/policy/finding"
)

// Document is the part of sallyport.yaml that decides: what may leave and
// with which credential. The zero Document allows nothing. Package rule says what a new key
// of a rule takes.
type Document struct {
	// Egress lists destinations without credentials. Order does not matter:
	// any deny wins, then approve, then allow and tunnel.
	// Example: [{destination: "*.docs.example.com", methods: [GET]}]
	Egress []EgressRule `yaml:"egress"`
	// EgressAuth lists destinations whose requests get a credential; each also
	// allows what it matches.
	// Example: [{destination: api.openai.com, authRef: openai-api-key}]
	EgressAuth []EgressAuthRule `yaml:"egressAuth"`
	// Credentials names the secrets that rules refer to, and where they live.
	// Example: [{name: openai-api-key}]
	Credentials []Credential `yaml:"credentials"`
	// Policy says where the team's own Rego is.
	// Example: {dir: policy.d}
	Policy Source `yaml:"policy"`
	// Observe lists sandboxes in observe mode: what the policy would deny them is
	// carried and recorded. See [Observation].
	// Example: [{sandboxes: {names: [demo]}, until: 2026-12-01T00:00:00Z}]
	Observe []Observation `yaml:"observe" json:",omitempty"`
	// Limits bounds what the rules allow.
	// Example: [{name: a-day, every: 24h, requests: 1000}]
	Limits []Limit `yaml:"limits" json:",omitempty"`
	// Prices says what models of LLM APIs cost, for limits of cost.
	// Example: [{model: "gpt-5*", input: "1.25", output: "10.00"}]
	Prices []Price `yaml:"prices" json:",omitempty"`
	// Expose lists ports of sandboxes that requests from this host may be carried
	// to, once an operator has exposed them and shown the token. Order does not
	// matter: any deny wins. On Kubernetes, clients of pods.router need no exposure.
	// Default: none, so that nothing reaches a sandbox.
	// Example: [{name: previews, sandboxes: {tags: {team: web}}, ports: [8000]}]
	Expose []ExposeRule `yaml:"expose" json:",omitempty"`
	// Approvals says how requests wait for an operator, where a rule says
	// approve.
	// Example: {answer: poll, timeout: 10m}
	Approvals Approvals `yaml:"approvals" json:",omitzero"`

	// Positions says where each key was written, by its path in the document
	// ("egress[0].paths[1]"), for errors. It may be nil and decides nothing.
	Positions map[string]finding.Position `yaml:"-" json:"-"`
	// Elsewhere names credentials that something besides the document uses, so that
	// nobody is warned that no rule does. It decides nothing.
	Elsewhere []string `yaml:"-" json:"-"`
}

// EgressRule decides about a destination.
type EgressRule struct {
	// Name appears in decisions, denials and the audit, and is given once.
	// Default: the destination.
	// Example: docs
	Name string `yaml:"name"`
	// Destination is a host name, "*.host" (any depth below it, not host
	// itself), either with ":port", an IP address, or a CIDR prefix.
	// Example: "*.docs.example.com"
	// Example: db.example.com:5432
	// Example: 10.20.0.0/16
	Destination string `yaml:"destination"`
	// Ports lists the TCP ports. Default: the destination's; else 443, and also
	// 80 when Plain is set; but every port for deny and approve.
	// Example: [443, 8443]
	Ports []uint16 `yaml:"ports"`
	// Methods lists HTTP methods in upper case. Default: all.
	// Example: [GET, HEAD]
	Methods []string `yaml:"methods"`
	// Paths lists globs over the normalised path (see urlpath.Normalize): * within
	// a segment, ** across, %2F a slash, encoded or not. A request with encoded
	// slashes is decided about in every reading of its path. Letter case matters,
	// but for deny and approve: those are also about what differs in letter case, in a
	// slash at the end or in dots and spaces at the end of a segment, which some
	// servers take for the same. Default: all.
	// Example: ["/repos/**", "/users/*/keys"]
	// Example: ["/@scope%2F*"]
	Paths []string `yaml:"paths"`
	// RawPath sends the path as the client wrote it, in place of its one canonical
	// spelling, for a destination that has the client sign what it wrote. A path with doubled
	// slashes is denied then. Default: false.
	// Example: true
	RawPath bool `yaml:"rawPath" json:",omitempty"`
	// Headers lists request headers that pass although they name another resource
	// (Destination, X-Amz-Copy-Source) or say on whose behalf a request is
	// (Impersonate-User, Sudo, X-Remote-User). They are refused else where a rule about the
	// host has paths or methods, gives a credential, or Rego decides. Default: none.
	// Example: [X-Amz-Copy-Source]
	Headers []string `yaml:"headers" json:",omitempty"`
	// Plain allows HTTP without TLS. Default: false.
	// Example: true
	Plain bool `yaml:"plain"`
	// Action is allow (default), deny, tunnel (pass TLS or TCP through unread)
	// or approve. A tunnel is read after all where another rule speaks about
	// the same destination. A connection that is neither TLS nor HTTP passes by tunnel, or by
	// an allow of an address or CIDR prefix that names ports other than 80 and
	// 443 and no methods or paths; for a name it takes tunnel.
	// Example: deny
	Action Action `yaml:"action"`
	// Sandboxes selects who the rule is for. Default: every sandbox.
	// Example: {tags: {team: support}}
	Sandboxes Selector `yaml:"sandboxes"`
	// Upstream says how an internal destination is reached. Default: as another rule
	// for the same destination, or one within it, says for the sandbox; two that differ are an error.
	// Example: {addresses: [10.20.0.0/16], roots: corp.pem}
	Upstream *Upstream `yaml:"upstream"`
	// Observe is until when the rule is not enforced, as 2026-12-01T00:00:00Z, at
	// most 30 days ahead: what it denies, or asks a person about, is decided
	// without it; and what its methods and paths leave out of its destination is
	// carried unless something else denies it. Default: it is enforced.
	// Example: 2026-12-01T00:00:00Z
	Observe time.Time `yaml:"observe" json:",omitzero"`
	// Body is what the rule has to see of a request's body, so that Rego can
	// decide by it. A request that the rule matches otherwise and that has no such body is
	// denied: none, a larger one, another content type, a content coding, JSON
	// that readers do not take alike, a WebSocket. Default: bodies are not read.
	// Example: {json: 64KiB}
	Body *BodyView `yaml:"body" json:",omitempty"`
}

// EgressAuthRule allows a destination over verified TLS and injects a credential.
// It governs its destination: for the sandboxes it selects, on its ports, what
// no egressAuth rule matches is denied, also where an egress rule allows it.
type EgressAuthRule struct {
	// Name appears in decisions, denials and the audit, and is given once.
	// Default: AuthRef@Destination.
	// Example: github
	Name        string `yaml:"name"`
	Destination string `yaml:"destination"`
	// Ports lists the TCP ports. Default: the destination's; else 443.
	// Example: [443, 8443]
	Ports   []uint16 `yaml:"ports"`
	Methods []string `yaml:"methods"`
	Paths   []string `yaml:"paths"`
	// RawPath is as EgressRule's.
	// Example: true
	RawPath bool `yaml:"rawPath" json:",omitempty"`
	// Headers is as EgressRule's.
	// Example: [Impersonate-User]
	Headers []string `yaml:"headers" json:",omitempty"`
	// AuthRef names one of Document.Credentials.
	// Example: openai-api-key
	AuthRef string `yaml:"authRef"`
	// Inject says where the credential goes. Default: Authorization: Bearer
	// with the secret's only field, or the one named token.
	// Example: {header: {name: X-Api-Key, value: "{{ .token }}"}}
	Inject    *Inject   `yaml:"inject"`
	Sandboxes Selector  `yaml:"sandboxes"`
	Upstream  *Upstream `yaml:"upstream"`
	// Inherit lets forks use the credential too. A request that the rule allows is else denied
	// to a sandbox that is a fork of another, whatever its tags: the fork of a sandbox does
	// not hand out what was entrusted to it. Default: false.
	// Example: true
	Inherit bool `yaml:"inherit" json:",omitempty"`
	// Cookies is pass where the sandbox may have the cookies that answers set, and send
	// its own: they can be a session that is as good as the credential, outside of every
	// rule. Default: Set-Cookie, Authentication-Info and response headers by whose names credentials travel
	// are removed from answers to requests with an injected credential, and Cookie from those.
	// Example: pass
	Cookies string `yaml:"cookies" json:",omitempty"`
	// Own is deny where a request is denied if the sandbox put something of its own into
	// the place where Inject puts the credential. Default: it is removed.
	// Example: deny
	Own string `yaml:"own" json:",omitempty"`
	// Observe is as EgressRule's: what the rule does not match of its destination
	// is carried, without the credential.
	// Example: 2026-12-01T00:00:00Z
	Observe time.Time `yaml:"observe" json:",omitzero"`
	// Body is what the rule has to see of a request's body: see EgressRule.Body.
	// Example: {json: 64KiB}
	Body *BodyView `yaml:"body" json:",omitempty"`
}

// PassCookies is the EgressAuthRule.Cookies that leaves them alone.
const PassCookies = "pass"

// DenyOwn is the EgressAuthRule.Own that denies.
const DenyOwn = "deny"

// Selector picks sandboxes; every given part must match. The zero Selector
// picks all.
type Selector struct {
	// Names lists sandboxes; each may be the one. Default: every sandbox.
	// Example: [build, release]
	Names []string `yaml:"names"`
	// Tags lists tags with their values; a sandbox has all of them. Default: any.
	// Example: {team: support}
	Tags map[string]string `yaml:"tags"`
}

// Upstream is how a destination that is not on the public internet is reached.
type Upstream struct {
	// Addresses lists IP addresses or CIDR prefixes that the name may resolve
	// to although their class (private, loopback, documentation …) is denied.
	// Example: [10.20.0.0/16]
	Addresses []string `yaml:"addresses" json:"addresses,omitempty"`
	// Roots is a PEM file of the certificate authorities to trust instead of
	// the system's.
	// Example: corp.pem
	Roots string `yaml:"roots" json:"roots,omitempty"`
	// Resolver is the DNS server to ask, host:port. Default: the host's.
	// Example: 10.20.0.53:53
	Resolver string `yaml:"resolver" json:"resolver,omitempty"`
	// Proxy is a proxy to go through: http://host:port, https://host:port (TLS
	// to the proxy, verified) or socks5://host:port. An HTTP proxy is asked for
	// a tunnel (CONNECT) on every port. It is asked for the address that the
	// gateway resolved and classified, and TLS to the destination is verified
	// inside. The proxy's own address is named in Addresses unless it is public;
	// a destination that leads to it is refused. Default: none.
	// Example: http://proxy.example.com:3128
	Proxy string `yaml:"proxy" json:"proxy,omitempty"`
	// ProxyAuthRef names the credential to log in to the proxy with. Its secret
	// has the fields username and password. Default: no login.
	// Example: corp-proxy
	ProxyAuthRef string `yaml:"proxyAuthRef" json:"proxyAuthRef,omitempty"`
	// ProxyRoots is a PEM file of the certificate authorities to trust for an
	// https:// proxy instead of the system's. Roots is not asked for it.
	// Example: proxy.pem
	ProxyRoots string `yaml:"proxyRoots" json:"proxyRoots,omitempty"`
	// Resolve says who looks the destination's name up: proxy, where nobody else
	// can, gives the check of its address up, and is for a rule that names one
	// host. Default: the gateway.
	// Example: proxy
	Resolve string `yaml:"resolve" json:"resolve,omitempty"`
}

// Source is where the team's own Rego comes from.
type Source struct {
	// Dir holds .rego files in packages below sallyport.team, and .json or
	// .yaml data, laid out as `opa test DIR` reads them; files that end in
	// _test.rego are for `sallyport policy test`. Default: none.
	//
	// A package takes part in decisions by the sets that it defines:
	//
	//	deny contains msg                       wins over everything
	//	approve contains msg                    a person decides
	//	allow contains {"rule": …, "reason": …} for TLS; "protocols": ["tls", "http", "other"] says for what else
	//	inject contains {"credential": …, "inject": …}
	//	limit contains {"name": …, "per": …, "every": …, "requests": …}
	//
	// They are asked in each phase: a set that looks at input.request says
	// nothing before there is one, and an allow that does must also allow the
	// phases dns and connect. An approve without a condition on input.phase is
	// asked for at the connection already. No allow opens what an egressAuth rule governs. A
	// limit has the keys of Limit but sandboxes and destination,
	// whose place its condition takes, and is asked for what is allowed.
	// Example: policy.d
	Dir string `yaml:"dir"`
	// Cache is how many answers are kept for inputs of which the Rego sees
	// nothing that is new; 0 keeps none. A policy that reads the clock or has a limit
	// keeps none either, nor does any about a request whose body is seen. Default: 4096.
	// Example: 0
	Cache *int `yaml:"cache"`
	// Timeout is how long one evaluation may take, from 1ms to 1s. One that
	// takes longer is made once more, and then denied: on a crowded machine the
	// clock runs while the evaluation does not. Default: 50ms.
	// Example: 100ms
	Timeout *Duration `yaml:"timeout"`
	// Watch says whether the daemon loads the configuration again when a file of
	// it changes: sallyport.yaml, Dir, the roots that rules name, a bundle's File
	// and Key. Default: true.
	// Example: false
	Watch *bool `yaml:"watch" json:",omitempty"`
	// Bundle is an OPA bundle that is in force beside Dir. Default: none.
	// Example: {url: https://policy.example.com/sallyport.tar.gz, key: bundle.pem}
	Bundle *BundleSource `yaml:"bundle" json:",omitempty"`

	// Verified is what Bundle holds. The code that takes it from where it is sets it, by
	// [ReadBundle]; without it a document with a Bundle cannot be compiled.
	Verified *Bundle `yaml:"-" json:",omitempty"`
}

// String is as "name=demo tag team=web". It is unambiguous, since it quotes names and tags
// that are not tokens.
func (s Selector) String() string {
	var parts []string
	for _, name := range s.Names {
		parts = append(parts, "name="+Quoted(name))
	}
	for _, tag := range slices.Sorted(maps.Keys(s.Tags)) {
		parts = append(parts, "tag "+Quoted(tag)+"="+Quoted(s.Tags[tag]))
	}
	return strings.Join(parts, " ")
}

// Picks reports whether a sandbox with this name ("" for any) and these tags is
// selected.
func (s Selector) Picks(name string, tags map[string]string) bool {
	if len(s.Names) > 0 && !slices.Contains(s.Names, name) {
		return false
	}
	return Tagged(s.Tags, tags)
}

func Tagged(want, got map[string]string) bool {
	for tag, value := range want {
		if v, ok := got[tag]; !ok || v != value {
			return false
		}
	}
	return true
}

// Position finds the place of path, or of the nearest thing around it that has one.
func (d Document) Position(path string) finding.Position {
	for path != "" {
		if p, ok := d.Positions[path]; ok {
			return p
		}
		path = path[:max(strings.LastIndexByte(path, '.'), strings.LastIndexByte(path, '['), 0)]
	}
	return d.Positions[""]
}

// Approvals says what becomes of a request that an operator has to approve. The
// zero Approvals holds it.
type Approvals struct {
	// Answer is hold (default: the request waits on its connection), or poll:
	// it is answered at once with 428 (Precondition Required) and an id, and is
	// to be sent again.
	// Example: poll
	Answer string `yaml:"answer" json:",omitempty"`
	// Timeout is after how long no answer is a no, from 1s to 1h. Default: 5m.
	// Example: 10m
	Timeout Duration `yaml:"timeout" json:",omitempty"`
	// Body is how much of a request's body is kept, in memory, to bind an
	// approval to it, up to 16MiB. A request with a larger one can be approved for
	// the session or for a time only. Default: 1MiB.
	// Example: 4MiB
	Body Size `yaml:"body" json:",omitempty"`
}

// Values of Approvals.Answer.
const (
	AnswerHold = "hold"
	AnswerPoll = "poll"
)

const MaxApprovalBody = 16 << 20 // bytes

// Defaulted is a with what it leaves out filled in.
func (a Approvals) Defaulted() Approvals {
	a.Answer = cmp.Or(a.Answer, AnswerHold)
	a.Timeout = cmp.Or(a.Timeout, Duration(5*time.Minute))
	a.Body = cmp.Or(a.Body, 1<<20)
	return a
}

// AgentPort is where the first process of a sandbox listens for the host. No rule
// exposes it.
const AgentPort = 1023

// ExposeRule says which requests may reach a port of a sandbox. The port has to
// be exposed besides, by an operator and until a time, and who asks has to show
// that exposure's token.
type ExposeRule struct {
	// Name appears in decisions, denials and the audit, and is given once; needed.
	// Example: previews
	Name string `yaml:"name"`
	// Sandboxes selects whose ports the rule is for. Default: every sandbox.
	// Example: {tags: {team: web}}
	Sandboxes Selector `yaml:"sandboxes"`
	// Ports lists the TCP ports inside of the sandbox. Default: every port for
	// deny; needed to allow requests or forwarded connections.
	// Example: [8000, 5173]
	Ports []uint16 `yaml:"ports" json:",omitempty"`
	// Methods lists HTTP methods in upper case. Default: all.
	// Example: [GET, HEAD]
	Methods []string `yaml:"methods" json:",omitempty"`
	// Paths lists globs over the normalised path, as EgressRule's. Default: all.
	// Example: ["/docs/**"]
	Paths []string `yaml:"paths" json:",omitempty"`
	// SSH makes the rule one for SSH access in place of requests, and lists what of
	// it: shell (shells and commands), sftp (files), forward (connections to Ports).
	// Default: a rule for requests; a deny without ports, methods and paths is for
	// SSH access too.
	// Example: [shell, sftp]
	SSH []Protocol `yaml:"ssh" json:",omitempty"`
	// Action is allow (default) or deny.
	// Example: deny
	Action Action `yaml:"action" json:",omitempty"`
}

// SshProtocols are what can be asked for over SSH.
var SshProtocols = []Protocol{ProtocolShell, ProtocolSFTP, ProtocolForward}

// SSHPort is the port of a destination in PhaseSSH where what is asked for is no
// forwarded connection.
const SSHPort = 22
