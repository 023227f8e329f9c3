package credential

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/template/parse"

	"golang.org/x/net/http/httpguts"

	"sallyport/policy"
)

// composed is an injection with a secret's values in it.
type composed struct {
	place  place
	value  string   // as it leaves
	traces []Secret // what a response could echo, besides the fields: value, and what it was made of
	length int      // of value, or of what it is a spelling of where its length depends on more than the fields' lengths
	secret []string // the fields that nobody may know, in the order of their use
	short  []string // those of them that are shorter than MinSecret
}

func newComposed(p place, value string, traces ...string) *composed {
	c := &composed{place: p, value: value, length: len(value)}
	for _, t := range traces {
		c.traces = append(c.traces, NewSecret(t))
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

// place is where a value goes: one of the two is set, in canonical form.
type place struct{ header, query string }

func (p place) put(r *http.Request, value string) {
	if p.header != "" {
		var space [64]byte
		folded := fold(p.header)
		for name := range r.Header {
			if string(appendFold(space[:0], name)) == folded {
				delete(r.Header, name)
			}
		}
		if r.Header == nil {
			r.Header = make(http.Header)
		}
		r.Header[p.header] = []string{value}
		return
	}
	query := withoutKeys(r.URL.RawQuery, func(key string) bool { return key == foldKey(p.query) })
	if query != "" {
		query += "&"
	}
	r.URL.RawQuery = query + url.QueryEscape(p.query) + "=" + value
}

// injection is a policy.Inject in a form that can be compared.
type injection struct {
	kind  byte // 0 is the zero Inject
	name  string
	value string
}

func injectionOf(i policy.Inject) injection {
	switch {
	case i.Header != nil:
		return injection{'h', i.Header.Name, i.Header.Value}
	case i.Basic != nil:
		return injection{'b', i.Basic.Username, i.Basic.Password}
	case i.Query != nil:
		return injection{'q', i.Query.Name, i.Query.Value}
	}
	return injection{}
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

func compose(i policy.Inject, fields map[string]Secret) (*composed, error) {
	set := 0
	for _, is := range []bool{i.Header != nil, i.Basic != nil, i.Query != nil} {
		if is {
			set++
		}
	}
	if set > 1 {
		return nil, errors.New("inject has more than one of header, basic and query")
	}
	switch {
	case i.Header != nil:
		name := http.CanonicalHeaderKey(i.Header.Name)
		if !httpguts.ValidHeaderFieldName(name) || framing[fold(name)] || hopByHop[fold(name)] && fold(name) != "proxy-authorization" {
			return nil, fmt.Errorf("inject.header.name %q is not a header that a credential can be put in", i.Header.Name)
		}
		value, used, err := execute(i.Header.Value, fields)
		if err != nil {
			return nil, fmt.Errorf("inject.header.value: %w", err)
		}
		if err := headerSafe(value); err != nil {
			return nil, err
		}
		return newComposed(place{header: name}, value, value).keeps(used, fields), nil

	case i.Basic != nil:
		user, names, err := execute(i.Basic.Username, fields)
		if err != nil {
			return nil, fmt.Errorf("inject.basic.username: %w", err)
		}
		password, used, err := execute(i.Basic.Password, fields)
		if err != nil {
			return nil, fmt.Errorf("inject.basic.password: %w", err)
		}
		if strings.Contains(user, ":") {
			return nil, errors.New("inject.basic.username comes to a value with a colon, which RFC 7617 does not allow")
		}
		pair := user + ":" + password
		if err := headerSafe(pair); err != nil {
			return nil, err
		}
		coded := base64.StdEncoding.EncodeToString([]byte(pair))
		value := "Basic " + coded
		if len(used) == 0 { // some services take a key for the username
			used = names
		}
		return newComposed(place{header: "Authorization"}, value, pair, coded, value).keeps(used, fields), nil

	case i.Query != nil:
		if i.Query.Name == "" {
			return nil, errors.New("inject.query.name is empty")
		}
		value, used, err := execute(i.Query.Value, fields)
		if err != nil {
			return nil, fmt.Errorf("inject.query.value: %w", err)
		}
		if strings.TrimSpace(value) == "" {
			return nil, fmt.Errorf("%w: the value to inject comes to nothing", ErrNoSecret)
		}
		// An upstream that encodes a value again may have it in the form in which it came.
		escaped := url.QueryEscape(value)
		c := newComposed(place{query: i.Query.Name}, escaped, value, escaped)
		c.length = len(value)
		return c.keeps(used, fields), nil
	}

	field := "token"
	if len(fields) == 1 {
		for name := range fields {
			field = name
		}
	}
	token, ok := fields[field]
	if !ok || token.Reveal() == "" {
		return nil, fmt.Errorf("%w for a bearer header: it has %d fields and none is named token; say which with inject", ErrNoSecret, len(fields))
	}
	if err := headerSafe(token.Reveal()); err != nil {
		return nil, err
	}
	return newComposed(place{header: "Authorization"}, "Bearer "+token.Reveal()).keeps([]string{field}, fields), nil
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
