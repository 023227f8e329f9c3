package placeholder

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/url"
	"strings"

	"sallyport/policy"
)

// spelling spells a value as a place has it.
type spelling func(value string) ([]byte, error)

func raw(value string) ([]byte, error)    { return []byte(value), nil }
func formed(value string) ([]byte, error) { return []byte(url.QueryEscape(value)), nil }

// SpellingError says that a credential cannot be spelled in the place of its placeholder.
type SpellingError struct {
	Credential string
	Err        error // nothing of the secret is in it
}

func (e *SpellingError) Unwrap() error { return e.Err }

func (e *SpellingError) Error() string {
	return fmt.Sprintf("spelling credential %q: %v", e.Credential, e.Err)
}

// quoted is as in a string of JSON.
func quoted(value string) ([]byte, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return text[1 : len(text)-1], nil
}

// segment is a part of a path. A value that some servers take for more than one segment is
// refused.
func segment(value string) ([]byte, error) {
	if strings.ContainsAny(value, `/\%?#;`) || strings.Trim(value, ".") == "" {
		return nil, errors.New("the secret has a character that a path cannot hold")
	}
	return []byte(url.PathEscape(value)), nil
}

func token(value string) ([]byte, error) {
	if !policy.IsToken(value) {
		return nil, errors.New("the secret has a character that the name of a subprotocol cannot have")
	}
	return []byte(value), nil
}

// bodyKind is how texts of a content type spell characters; known is false where a
// placeholder cannot be replaced without knowing more of it.
func bodyKind(contentType string) (k Kind, spell spelling, known bool) {
	kind, _, err := mime.ParseMediaType(contentType)
	switch {
	case err != nil:
	case kind == "application/x-www-form-urlencoded":
		return Form, formed, true
	case strings.HasSuffix(kind, "/json"), strings.HasSuffix(kind, "+json"), strings.HasSuffix(kind, "ndjson"), strings.HasSuffix(kind, "jsonl"):
		return JSON, quoted, true
	case kind == "multipart/form-data", strings.HasPrefix(kind, "text/") && kind != "text/xml", kind == "application/graphql":
		return Raw, raw, true
	}
	return Raw, raw, false
}
