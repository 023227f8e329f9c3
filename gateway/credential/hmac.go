package credential

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"sallyport/policy"
)

// hmacKind signs requests with an HMAC (RFC 2104) of a text that the rule describes. It is
// the rule's own: two rules that say the same are two kinds.
type hmacKind struct{ *policy.HMACInject }

// signedHeader is a header with the parts of the request left to fill in.
type signedHeader struct {
	name     string
	template Secret
}

var hmacs = map[string]func() hash.Hash{"": sha256.New, policy.SHA1: sha1.New, policy.SHA256: sha256.New, policy.SHA512: sha512.New}

func (k hmacKind) compose(fields map[string]Secret) (*composed, error) {
	key, used, err := execute(k.Key, fields)
	if err != nil {
		return nil, fmt.Errorf("inject.hmac.key: %w", err)
	}
	digest := hmacs[k.Algorithm]
	if digest == nil {
		return nil, fmt.Errorf("inject.hmac.algorithm is %q", k.Algorithm)
	}
	given := make([]signedHeader, 0, len(k.Headers))
	for _, name := range slices.Sorted(maps.Keys(k.Headers)) {
		value, _, err := execute(k.Headers[name], fields)
		if err != nil {
			return nil, fmt.Errorf("inject.hmac.headers.%s: %w", name, err)
		}
		if err := headerSafe(value); err != nil {
			return nil, err
		}
		given = append(given, signedHeader{http.CanonicalHeaderKey(name), NewSecret(value)})
	}
	secret := NewSecret(key)
	c := &composed{sign: func(r *http.Request, s Signing) (string, error) {
		values, body, err := k.values(r, s)
		if err != nil {
			return "", err
		}
		m := hmac.New(digest, []byte(secret.Reveal()))
		for i, part := range strings.Split(k.Sign, "{body}") {
			if i > 0 {
				m.Write(body) // which can be large, and is not copied
			}
			m.Write([]byte(fill(part, values)))
		}
		if k.Encoding == policy.Base64 {
			values["signature"] = base64.StdEncoding.EncodeToString(m.Sum(nil))
		} else {
			values["signature"] = hex.EncodeToString(m.Sum(nil))
		}
		for _, h := range given {
			setHeader(r, h.name, fill(h.template.Reveal(), values))
		}
		return values["signature"], nil
	}}
	return c.keeps(used, fields), nil
}

// values are the parts of a request by their names, but for the body.
func (k hmacKind) values(r *http.Request, s Signing) (values map[string]string, body []byte, err error) {
	values = map[string]string{
		"method": r.Method, "host": r.Host, "path": r.URL.EscapedPath(), "query": r.URL.RawQuery,
		"timestamp": strconv.FormatInt(s.Now.Unix(), 10), "timestampMs": strconv.FormatInt(s.Now.UnixMilli(), 10),
	}
	if strings.Contains(k.Sign, "{bodySha256}") {
		if values["bodySha256"], err = s.Hash(); err != nil {
			return nil, nil, err
		}
	}
	if strings.Contains(k.Sign, "{body}") {
		body, err = s.Body()
	}
	return values, body, err
}

// fill puts values in the place of their names in braces. A value that is put in is not
// looked at again.
func fill(text string, values map[string]string) string {
	var b strings.Builder
	for {
		before, rest, more := strings.Cut(text, "{")
		b.WriteString(before)
		if !more {
			return b.String()
		}
		name, after, _ := strings.Cut(rest, "}")
		if value, known := values[name]; known {
			b.WriteString(value)
			text = after
		} else {
			b.WriteByte('{')
			text = rest
		}
	}
}

func (k hmacKind) own(r *http.Request) bool {
	for name := range k.Headers {
		if hasHeader(r, name) {
			return true
		}
	}
	return false
}
