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

	"golang.org/x/crypto/ssh"
	"golang.org/x/net/http/httpguts"

	"sallyport/policy"
)

// signFunc signs each request and returns the signature. It may change a request that it
// returns an error for.
type signFunc func(*http.Request, Signing) (signature string, err error)

// composed is a kind with a secret's values in it.
type composed struct {
	put    func(*http.Request) // gives what is the same for each request, or
	sign   signFunc
	traces []Secret // what a response could echo, besides the fields: what leaves, and what it was made of
	length int      // of the longest, or of what it is a spelling of where its length depends on more than the fields' lengths
	secret []string // the fields that nobody may know, in the order of their use
	short  []string // those of them that are shorter than MinSecret
	stands Secret   // what takes the place of a placeholder; empty for other kinds

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
func constant(put func(*http.Request), traces ...Secret) *composed {
	c := &composed{put: put, traces: traces}
	if n := len(traces); n > 0 {
		c.length = len(traces[n-1].text)
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

// Check says why the fields of a secret cannot be given in the way that a rule names, or
// nil. No value of a field is in the error.
func Check(i policy.Inject, fields map[string]Secret, now time.Time) error {
	if len(fields) == 0 {
		return errors.New("the secret has no field")
	}
	if i.TokenEndpoint { // which it is not given to
		return nil
	}
	c, err := compose(i, fields)
	if err != nil {
		return err
	}
	if i.SSH != nil {
		if _, err := ParseSSH(fields); err != nil {
			return fmt.Errorf("%w: the field %s is no private key of SSH: %w; set the file that ssh-keygen makes, and the field %s if it has one",
				ErrUnfit, FieldPrivateKey, err, FieldPassphrase)
		}
		return nil
	}
	return c.expired(now)
}

// ParseSSH reads the private key of a secret. An error of package ssh has nothing of the key
// in it.
func ParseSSH(fields map[string]Secret) (key ssh.Signer, err error) {
	text := []byte(strings.TrimSpace(fields[FieldPrivateKey].Reveal()) + "\n")
	defer clear(text)
	if passphrase := fields[FieldPassphrase].Reveal(); passphrase != "" {
		return ssh.ParsePrivateKeyWithPassphrase(text, []byte(passphrase))
	}
	return ssh.ParsePrivateKey(text)
}
