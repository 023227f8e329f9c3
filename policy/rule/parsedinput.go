package rule

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sallyport/internal/hostname"
	"sallyport/policy"
	"sallyport/policy/pathvariants"
	"sallyport/policy/urlpath"
)

// ParsedInput is an Input that has been read: the host in canonical form, the
// protocol settled.
type ParsedInput struct {
	policy.Input
	Host     string
	Addr     netip.Addr // valid when the sandbox dialled a bare address
	SentPath string     // the request's path; Request.Path is one of its readings
}

// ParseInput refuses an input that no policy could decide about. The gateway's promises
// about its fields are checked again, since a rule that compares a path
// or a host in another form than its own decides about another one.
func ParseInput(in policy.Input) (ParsedInput, error) {
	s := ParsedInput{Input: in}
	var err error
	if in.Phase == policy.PhaseInbound || in.Phase == policy.PhaseSSH {
		s.Host = in.Destination.Host // the name of a sandbox, which the decision holds it to
	} else if s.Host, s.Addr, err = hostname.Parse(in.Destination.Host); err != nil {
		return s, err
	}
	switch in.Phase {
	case policy.PhaseDNS:
		if s.Addr.IsValid() {
			return s, fmt.Errorf("%s is an address, not a name", s.Host)
		}
		s.Protocol, s.Request = "", nil
		return s, nil
	case policy.PhaseConnect:
		s.Request = nil
		if in.Protocol != policy.ProtocolTLS && in.Protocol != policy.ProtocolHTTP && !in.Protocol.IsOther() {
			return s, fmt.Errorf("unknown protocol %q", in.Protocol)
		}
	case policy.PhaseRequest, policy.PhaseInbound:
		if s.Protocol, err = protocolOf(in); err != nil {
			return s, err
		}
		s.SentPath = in.Request.Path
	case policy.PhaseSSH:
		s.Request = nil
		if !slices.Contains(policy.SshProtocols, in.Protocol) {
			return s, fmt.Errorf("%.64q cannot be done over SSH", in.Protocol)
		}
	default:
		return s, fmt.Errorf("unknown phase %q", in.Phase)
	}
	if in.Destination.Port == 0 {
		return s, errors.New("the destination has no port")
	}
	return s, nil
}

// String is what was asked for, in the words of decision.rego.
func (s ParsedInput) String() string {
	port := strconv.Itoa(int(s.Destination.Port))
	switch s.Phase {
	case policy.PhaseDNS:
		return s.Host
	case policy.PhaseConnect, policy.PhaseSSH:
		return string(s.Protocol) + " to " + s.Host + ":" + port
	default:
		return s.Request.Method + " " + s.Request.Path + " at " + s.Host + ":" + port
	}
}

// protocolOf checks a request and says what carries it: scheme and connection must agree.
func protocolOf(in policy.Input) (policy.Protocol, error) {
	r := in.Request
	if r == nil {
		return "", errors.New("the request is missing")
	}
	if in.Phase == policy.PhaseRequest && policy.Protocol(r.Scheme).IsLogin() {
		return loginProtocolOf(in)
	}
	if !policy.IsToken(r.Method) {
		return "", fmt.Errorf("%.64q is not an HTTP method", r.Method)
	}
	if r.Method != strings.ToUpper(r.Method) {
		// Some servers take delete for DELETE, which a rule names.
		return "", fmt.Errorf("the method %.64q is not in capitals: servers disagree about what it is", r.Method)
	}
	if err := urlpath.CheckNormalized(r.Path); err != nil {
		return "", err
	}
	want := policy.ProtocolTLS
	switch r.Scheme {
	case "https":
	case "http":
		want = policy.ProtocolHTTP
	default:
		return "", fmt.Errorf("unknown scheme %.64q", r.Scheme)
	}
	if in.Protocol != "" && in.Protocol != want {
		return "", fmt.Errorf("a request for %s on a connection of %s", r.Scheme, in.Protocol)
	}
	return want, nil
}

// loginProtocolOf is protocolOf for a request over a protocol that the gateway logs in by.
func loginProtocolOf(in policy.Input) (policy.Protocol, error) {
	r, protocol := in.Request, policy.Protocol(in.Request.Scheme)
	switch {
	case in.Protocol != "" && in.Protocol != protocol:
		return "", fmt.Errorf("a request over %s on a connection of %s", protocol, in.Protocol)
	case protocol == policy.ProtocolSSH && !slices.Contains(policy.SSHMethods, r.Method), !policy.IsToken(r.Method):
		return "", fmt.Errorf("%.64q is no method of %s", r.Method, protocol)
	}
	return protocol, urlpath.CheckNormalized(r.Path)
}

// HasVariants tells whether the request's path has more than one reading.
func (s ParsedInput) HasVariants() bool {
	return s.Request != nil && pathvariants.Several(s.Request.Path)
}

// Variants are the input with each reading of its path: itself, where there is
// but one.
func (s ParsedInput) Variants() iter.Seq[ParsedInput] {
	return func(yield func(ParsedInput) bool) {
		if !s.HasVariants() {
			yield(s)
			return
		}
		for _, path := range pathvariants.Of(s.Request.Path) {
			q, of := *s.Request, s
			q.Path, of.Request = path, &q
			if !yield(of) {
				return
			}
		}
	}
}
