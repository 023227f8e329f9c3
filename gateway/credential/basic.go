package credential

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"sallyport/policy"
)

// basicKind gives a username and a password (RFC 7617).
type basicKind policy.BasicInject

func (k basicKind) compose(fields map[string]Secret) (*composed, error) {
	user, names, err := execute(k.Username, fields)
	if err != nil {
		return nil, fmt.Errorf("inject.basic.username: %w", err)
	}
	password, used, err := execute(k.Password, fields)
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
	sent := NewSecret(value)
	return constant(func(r *http.Request) { setHeader(r, "Authorization", sent.Reveal()) }, NewSecret(pair), NewSecret(coded), sent).keeps(used, fields), nil
}

func (basicKind) own(r *http.Request) bool { return hasHeader(r, "Authorization") }
