package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// subject is an Input that has been read: the host in canonical form, the
// protocol settled.
type subject struct {
	Input
	host string
	addr netip.Addr // valid when the sandbox dialled a bare address
}

// read refuses an input that no policy could decide about. What the gateway
// promises about its fields is checked again, since a rule that compares a path
// or a host in another form than its own decides about another one.
func read(in Input) (subject, error) {
	s := subject{Input: in}
	var err error
	if s.host, s.addr, err = readHost(in.Destination.Host); err != nil {
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
	case PhaseRequest:
		if s.Protocol, err = carrier(in); err != nil {
			return s, err
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
	case PhaseConnect:
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
	if r.Path == "" || r.Path[0] != '/' || len(r.Path) > maxPath || strings.Contains(r.Path, "//") {
		return "", errors.New("the path is not normalised")
	}
	if err := plainPath(r.Path); err != nil {
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

// The keys of the input document. Terms are never changed once made.
var (
	keyPhase       = ast.StringTerm("phase")
	keyProtocol    = ast.StringTerm("protocol")
	keySandbox     = ast.StringTerm("sandbox")
	keyDestination = ast.StringTerm("destination")
	keyRequest     = ast.StringTerm("request")
	keyName        = ast.StringTerm("name")
	keyID          = ast.StringTerm("id")
	keySession     = ast.StringTerm("session")
	keyTags        = ast.StringTerm("tags")
	keyKeys        = ast.StringTerm("keys")
	keyLookup      = ast.StringTerm("lookup")
	keyMoment      = ast.StringTerm("moment")
	keyLine        = ast.StringTerm("line")
	keyHost        = ast.StringTerm("host")
	keyPort        = ast.StringTerm("port")
	keyMethod      = ast.StringTerm("method")
	keyScheme      = ast.StringTerm("scheme")
	keyPath        = ast.StringTerm("path")
	keyQueryKeys   = ast.StringTerm("query_keys")
	keyHeaders     = ast.StringTerm("headers")
	keySize        = ast.StringTerm("size")
	keyBody        = ast.StringTerm("body")
)

// The values of input.phase and input.protocol.
var (
	phaseTerms = map[Phase]*ast.Term{
		PhaseDNS:     ast.StringTerm(string(PhaseDNS)),
		PhaseConnect: ast.StringTerm(string(PhaseConnect)),
		PhaseRequest: ast.StringTerm(string(PhaseRequest)),
	}
	protocolTerms = map[Protocol]*ast.Term{
		ProtocolTLS:   ast.StringTerm(string(ProtocolTLS)),
		ProtocolHTTP:  ast.StringTerm(string(ProtocolHTTP)),
		ProtocolOther: ast.StringTerm(string(ProtocolOther)),
	}
)

// value builds the document `input` without a detour over JSON. Its shape is
// schema/input.json; what only a team's Rego could read is left out where there
// is none.
func (p *Policy) value(s subject) (ast.Value, error) {
	phase, lookup := [2]*ast.Term{keyPhase, phaseTerms[s.Phase]}, [2]*ast.Term{keyLookup, p.lookupTerm(s)}
	if !p.team {
		return ast.NewObject(phase, lookup), nil
	}
	fields := make([][2]*ast.Term, 0, 6)
	fields = append(fields, phase, lookup,
		[2]*ast.Term{keySandbox, sandboxTerm(s.Sandbox)},
		[2]*ast.Term{keyDestination, destinationTerm(s)},
	)
	if s.Protocol != "" {
		fields = append(fields, [2]*ast.Term{keyProtocol, protocolTerms[s.Protocol]})
	}
	if s.Request != nil {
		request, err := requestTerm(s.Request)
		if err != nil {
			return nil, err
		}
		fields = append(fields, [2]*ast.Term{keyRequest, request})
	}
	return ast.NewObject(fields...), nil
}

func sandboxTerm(s Sandbox) *ast.Term {
	tags := make([][2]*ast.Term, 0, len(s.Tags))
	for tag, value := range s.Tags {
		tags = append(tags, [2]*ast.Term{ast.StringTerm(tag), ast.StringTerm(value)})
	}
	return ast.NewTerm(ast.NewObject(
		[2]*ast.Term{keyName, ast.StringTerm(s.Name)},
		[2]*ast.Term{keyID, ast.StringTerm(s.ID)},
		[2]*ast.Term{keySession, ast.StringTerm(s.Session)},
		[2]*ast.Term{keyTags, ast.NewTerm(ast.NewObject(tags...))},
	))
}

func destinationTerm(s subject) *ast.Term {
	host := [2]*ast.Term{keyHost, ast.StringTerm(s.host)}
	if s.Phase == PhaseDNS {
		return ast.NewTerm(ast.NewObject(host))
	}
	return ast.NewTerm(ast.NewObject(host, [2]*ast.Term{keyPort, ast.InternedTerm(int(s.Destination.Port))}))
}

func requestTerm(r *Request) (*ast.Term, error) {
	fields := make([][2]*ast.Term, 0, 7)
	fields = append(fields,
		[2]*ast.Term{keyMethod, ast.InternedTerm(r.Method)},
		[2]*ast.Term{keyScheme, ast.InternedTerm(r.Scheme)},
		[2]*ast.Term{keyPath, ast.StringTerm(r.Path)},
		[2]*ast.Term{keyQueryKeys, stringsTerm(r.QueryKeys)},
		[2]*ast.Term{keyHeaders, stringsTerm(r.Headers)},
		[2]*ast.Term{keySize, ast.NumberTerm(json.Number(fmt.Sprint(r.Size)))},
	)
	if r.Body != nil {
		body, err := ast.InterfaceToValue(r.Body)
		if err != nil {
			return nil, fmt.Errorf("reading the request's body: %w", err)
		}
		fields = append(fields, [2]*ast.Term{keyBody, ast.NewTerm(body)})
	}
	return ast.NewTerm(ast.NewObject(fields...)), nil
}

func stringsTerm(list []string) *ast.Term {
	terms := make([]*ast.Term, len(list))
	for i, s := range list {
		terms[i] = ast.StringTerm(s)
	}
	return ast.ArrayTerm(terms...)
}
