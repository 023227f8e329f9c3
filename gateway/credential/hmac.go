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
	given := make([]headerKind, 0, len(k.Headers))
	for _, name := range slices.Sorted(maps.Keys(k.Headers)) {
		value, _, err := execute(k.Headers[name], fields)
		if err != nil {
			return nil, fmt.Errorf("inject.hmac.headers.%s: %w", name, err)
		}
		if err := headerSafe(value); err != nil {
			return nil, err
		}
		given = append(given, headerKind{http.CanonicalHeaderKey(name), value})
	}
	c := &composed{sign: func(r *http.Request, s Signing) error {
		values, err := k.values(r, s)
		if err != nil {
			return err
		}
		m := hmac.New(digest, []byte(key))
		m.Write([]byte(strings.NewReplacer(values...).Replace(k.Sign)))
		signature := hex.EncodeToString
		if k.Encoding == policy.Base64 {
			signature = base64.StdEncoding.EncodeToString
		}
		values = append(values, "{signature}", signature(m.Sum(nil)))
		fill := strings.NewReplacer(values...)
		for _, h := range given {
			setHeader(r, h.Name, fill.Replace(h.Value))
		}
		return nil
	}}
	return c.keeps(used, fields), nil
}

// values are the placeholders with what they stand for.
func (k hmacKind) values(r *http.Request, s Signing) ([]string, error) {
	values := []string{
		"{method}", r.Method, "{host}", r.Host, "{path}", r.URL.EscapedPath(), "{query}", r.URL.RawQuery,
		"{timestamp}", strconv.FormatInt(s.Now.Unix(), 10), "{timestampMs}", strconv.FormatInt(s.Now.UnixMilli(), 10),
	}
	for name, read := range map[string]func() (string, error){"{bodySha256}": s.Hash, "{body}": s.Body} {
		if !strings.Contains(k.Sign, name) {
			continue
		}
		value, err := read()
		if err != nil {
			return nil, err
		}
		values = append(values, name, value)
	}
	return values, nil
}

func (k hmacKind) own(r *http.Request) bool {
	for name := range k.Headers {
		if hasHeader(r, name) {
			return true
		}
	}
	return false
}
