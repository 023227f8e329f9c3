package credential

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"text/template/parse"
	"time"

	"golang.org/x/net/http/httpguts"

	"sallyport/policy"
)

// kind is one way to give a credential to an HTTP request. Kinds are compared: two that are
// equal give a secret in the same way.
type kind interface {
	// compose fills the fields of a secret in, once for each version of it.
	compose(fields map[string]Secret) (*composed, error)
	// own reports whether a sandbox's request has something in the place that the kind
	// fills.
	own(r *http.Request) bool
}

// kindOf returns the kind that a rule names.
func kindOf(i policy.Inject) (k kind, err error) {
	if p := i.Protocol(); p.IsLogin() {
		return nil, fmt.Errorf("inject logs in over %s, and goes into no request", p)
	}
	if i.TokenEndpoint {
		return nil, errors.New("inject.tokenEndpoint is answered by the gateway, and gives the credential to nobody")
	}
	given := 0
	take := func(other kind) { k, given = other, given+1 }
	if i.Header != nil {
		take(headerKind(*i.Header))
	}
	if i.Basic != nil {
		take(basicKind(*i.Basic))
	}
	if i.Query != nil {
		take(queryKind(*i.Query))
	}
	if i.Cookie != nil {
		take(cookieKind(*i.Cookie))
	}
	if i.ClientCertificate != nil {
		take(certificateKind(*i.ClientCertificate))
	}
	if i.Placeholder != nil {
		take(placeholderKind{})
	}
	if i.AWS != nil {
		take(awsKind(*i.AWS))
	}
	if i.HMAC != nil {
		take(hmacKind{i.HMAC})
	}
	switch given {
	case 0:
		return bearerKind{}, nil
	case 1:
		return k, nil
	}
	return nil, errors.New("inject names more than one kind")
}

// composed is a kind with a secret's values in it.
type composed struct {
	put    func(*http.Request)                // gives what is the same for each request, or
	sign   func(*http.Request, Signing) error // signs each; it may change one that it returns an error for
	traces []Secret                           // what a response could echo, besides the fields: what leaves, and what it was made of
	length int                                // of the longest, or of what it is a spelling of where its length depends on more than the fields' lengths
	secret []string                           // the fields that nobody may know, in the order of their use
	short  []string                           // those of them that are shorter than MinSecret
	stands Secret                             // what takes the place of a placeholder; empty for other kinds

	certificate *tls.Certificate      // of certificateKind
	fresh       func(time.Time) error // why it cannot be given any more, or yet; nil: it always can
}

func (c *composed) expired(now time.Time) error {
	if c.fresh == nil {
		return nil
	}
	return c.fresh(now)
}

// constant is of a kind that gives each request the same. The last of traces is the value
// that leaves.
func constant(put func(*http.Request), traces ...string) *composed {
	c := &composed{put: put}
	for _, t := range traces {
		c.traces, c.length = append(c.traces, NewSecret(t)), len(t)
	}
	return c
}

// keeps says which fields nobody may know.
func (c *composed) keeps(used []string, fields map[string]Secret) *composed {
	c.secret = used
	for _, name := range used {
		if len(strings.TrimSpace(fields[name].Reveal())) < MinSecret {
			c.short = append(c.short, name)
		}
	}
	return c
}

// Short names the fields that an injection keeps from everybody and that are shorter
// than MinSecret: [Lease.Apply] refuses them unless they are allowed. It names none of
// what cannot be injected for another reason.
func Short(i policy.Inject, fields map[string]Secret) []string {
	c, err := compose(i, fields)
	if err != nil {
		return nil
	}
	return c.short
}

// Own reports whether a sandbox's request, before [StripRequest], has something of its own
// in the place where an injection puts the credential.
func Own(i policy.Inject, r *http.Request) bool {
	k, err := kindOf(i)
	return !i.TokenEndpoint && (err != nil || k.own(r))
}

// Refuses says why a sandbox's request, before [StripRequest], cannot be given the
// credential in the way that an injection names, or nil. The error is for the sandbox.
func Refuses(i policy.Inject, r *http.Request) error {
	if i.AWS == nil {
		return nil
	}
	return awsKind(*i.AWS).refuses(r)
}

func compose(i policy.Inject, fields map[string]Secret) (*composed, error) {
	if i.Protocol().IsLogin() {
		c, _, err := composeLogin(i, fields)
		return c, err
	}
	k, err := kindOf(i)
	if err != nil {
		return nil, err
	}
	return k.compose(fields)
}

// headerSafe refuses what would end a header (RFC 9110, section 5.5). A final
// newline is what a secret most often has by mistake.
func headerSafe(value string) error {
	switch {
	case strings.TrimSpace(value) == "":
		return fmt.Errorf("%w: the value to inject comes to nothing", ErrNoSecret)
	case strings.TrimRight(value, "\r\n") != value:
		return errors.New("the secret ends with a newline, which a header cannot hold; set it again without")
	case !httpguts.ValidHeaderFieldValue(value):
		return errors.New("the secret has a control character or newline in it, which a header cannot hold")
	}
	return nil
}

// execute fills the secret's fields into a template that has text and
// {{ .field }} only, and says which.
func execute(text string, fields map[string]Secret) (filled string, used []string, err error) {
	trees, err := parse.Parse("inject", text, "", "")
	if err != nil {
		return "", nil, fmt.Errorf("%w; it can have text and fields such as {{ .token }}", err)
	}
	var b strings.Builder
	tree := trees["inject"]
	if tree == nil || tree.Root == nil { // nothing but space
		return "", nil, fmt.Errorf("%w: the template is empty", ErrNoSecret)
	}
	for _, node := range tree.Root.Nodes {
		if text, ok := node.(*parse.TextNode); ok {
			b.Write(text.Text)
			continue
		}
		name, ok := fieldName(node)
		if !ok {
			return "", nil, fmt.Errorf("%s is more than a field: use {{ .field }}", node)
		}
		value, ok := fields[name]
		if !ok {
			return "", nil, fmt.Errorf("%w: it has no field %q, which the template names", ErrNoSecret, name)
		}
		b.WriteString(value.Reveal())
		if !slices.Contains(used, name) {
			used = append(used, name)
		}
	}
	return b.String(), used, nil
}

func fieldName(node parse.Node) (string, bool) {
	action, ok := node.(*parse.ActionNode)
	if !ok || len(action.Pipe.Decl) > 0 || len(action.Pipe.Cmds) != 1 || len(action.Pipe.Cmds[0].Args) != 1 {
		return "", false
	}
	field, ok := action.Pipe.Cmds[0].Args[0].(*parse.FieldNode)
	if !ok || len(field.Ident) != 1 {
		return "", false
	}
	return field.Ident[0], true
}
