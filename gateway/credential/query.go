package credential

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"sallyport/policy"
)

// queryKind gives a credential as a parameter of the URL.
type queryKind policy.QueryInject

func (k queryKind) compose(fields map[string]Secret) (*composed, error) {
	if k.Name == "" {
		return nil, errors.New("inject.query.name is empty")
	}
	value, used, err := execute(k.Value, fields)
	if err != nil {
		return nil, fmt.Errorf("inject.query.value: %w", err)
	}
	if strings.TrimSpace(value) == "" {
		return nil, fmt.Errorf("%w: the value to inject comes to nothing", ErrNoSecret)
	}
	// An upstream that encodes a value again may have it in the form in which it came.
	escaped := NewSecret(url.QueryEscape(value))
	c := constant(func(r *http.Request) {
		query := k.without(r)
		if query != "" {
			query += "&"
		}
		r.URL.RawQuery = query + url.QueryEscape(k.Name) + "=" + escaped.Reveal()
	}, NewSecret(value), escaped)
	c.length = len(value)
	return c.keeps(used, fields), nil
}

func (k queryKind) own(r *http.Request) bool {
	return len(k.without(r)) < len(strings.TrimRight(r.URL.RawQuery, "&;"))
}

// without is the query without the parameter.
func (k queryKind) without(r *http.Request) string {
	folded := foldKey(k.Name)
	return withoutKeys(r.URL.RawQuery, func(key string) bool { return key == folded })
}
