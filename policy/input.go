package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// subject is an Input that has been read: the host in canonical form, the
// protocol settled.
type subject struct {
	Input
	host string
	addr netip.Addr // valid when the sandbox dialled a bare address
	sent string     // the request's path; Request.Path is one of its readings
}

// read refuses an input that no policy could decide about. What the gateway
// promises about its fields is checked again, since a rule that compares a path
// or a host in another form than its own decides about another one.
func read(in Input) (subject, error) {
	s := subject{Input: in}
	var err error
	if in.Phase == PhaseInbound || in.Phase == PhaseSSH {
		s.host = in.Destination.Host // the name of a sandbox, which the decision holds it to
	} else if s.host, s.addr, err = readHost(in.Destination.Host); err != nil {
		return s, err
	}
	switch in.Phase {
	case PhaseDNS:
		if s.addr.IsValid() {
			return s, fmt.Errorf("%s is an address, not a name", s.host)
		}
		s.Protocol, s.Request = "", nil
		return s, nil
	case PhaseConnect:
		s.Request = nil
		if !slices.Contains([]Protocol{ProtocolTLS, ProtocolHTTP, ProtocolOther}, in.Protocol) {
			return s, fmt.Errorf("unknown protocol %q", in.Protocol)
		}
	case PhaseRequest, PhaseInbound:
		if s.Protocol, err = carrier(in); err != nil {
			return s, err
		}
		s.sent = in.Request.Path
	case PhaseSSH:
		s.Request = nil
		if !slices.Contains(sshProtocols, in.Protocol) {
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
func (s subject) String() string {
	port := strconv.Itoa(int(s.Destination.Port))
	switch s.Phase {
	case PhaseDNS:
		return s.host
	case PhaseConnect, PhaseSSH:
		return string(s.Protocol) + " to " + s.host + ":" + port
	default:
		return s.Request.Method + " " + s.Request.Path + " at " + s.host + ":" + port
	}
}

// carrier checks a request and says what carries it: scheme and connection must agree.
func carrier(in Input) (Protocol, error) {
	r := in.Request
	if r == nil {
		return "", errors.New("the request is missing")
	}
	if !token(r.Method) {
		return "", fmt.Errorf("%.64q is not an HTTP method", r.Method)
	}
	if r.Method != strings.ToUpper(r.Method) {
		// Some servers take delete for DELETE, which a rule names.
		return "", fmt.Errorf("the method %.64q is not in capitals: servers disagree about what it is", r.Method)
	}
	if err := normalised(r.Path); err != nil {
		return "", err
	}
	want := ProtocolTLS
	switch r.Scheme {
	case "https":
	case "http":
		want = ProtocolHTTP
	default:
		return "", fmt.Errorf("unknown scheme %.64q", r.Scheme)
	}
	if in.Protocol != "" && in.Protocol != want {
		return "", fmt.Errorf("a request for %s on a connection of %s", r.Scheme, in.Protocol)
	}
	return want, nil
}
