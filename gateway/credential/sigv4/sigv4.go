// Package sigv4 signs requests with AWS Signature Version 4 and 4a, in their headers or
// their query, and bodies in aws-chunked form chunk by chunk.
//
// It is for requests that somebody else has built: [Parse] reads how they were signed, and
// [Keys.Sign] signs them anew in the same way. AWS's own signers for Go sign no body of
// SigV4a that streams and no chunks, and send a query in another order than it came, so
// that another would leave than was decided about. The package is tested with AWS's
// published test suite.
package sigv4

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	stdhash "hash"
	"math/big"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
)

// Algorithms.
const (
	V4  = "AWS4-HMAC-SHA256"
	V4a = "AWS4-ECDSA-P256-SHA256"
)

// Payload is what stands for the body in a signature where that is not its hash.
const (
	Unsigned        = "UNSIGNED-PAYLOAD"
	UnsignedTrailer = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
	Empty           = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" // the hash of no body
)

const (
	timeFormat = "20060102T150405Z"
	dayFormat  = "20060102"
	end        = "aws4_request"
)

// Form is how a request is signed.
type Form struct {
	Algorithm string   // V4 or V4a
	Service   string   // as s3
	Region    string   // of V4a a list of them, with commas
	Headers   []string // that are signed besides host and x-amz-*, in lower case
	Query     bool     // the signature is in the query: a presigned URL
	Expires   int      // seconds from the signature on, of a presigned URL
}

// Keys are those of an AWS account or role. They are not copied once they are in use.
type Keys struct {
	ID, Secret, Session string

	once sync.Once
	key  *ecdsa.PrivateKey // of V4a
	err  error

	mu     sync.Mutex
	scopes map[string]*sync.Pool // of HMACs with the keys of V4 that were derived, by their scopes
}

// maxScopes bounds Keys.scopes: a sandbox may choose the region and the service.
const maxScopes = 32

// ErrUnsigned is the error of Parse for a request without a signature.
var ErrUnsigned = errors.New("the request has no signature of AWS")

// Parse reads how a request is signed. It checks no signature.
func Parse(r *http.Request) (f Form, err error) {
	var credential, headers string
	if auth := r.Header.Get("Authorization"); strings.HasPrefix(auth, "AWS4-") {
		algorithm, rest, _ := strings.Cut(auth, " ")
		f.Algorithm = algorithm
		for part := range strings.SplitSeq(rest, ",") {
			switch name, value, _ := strings.Cut(strings.TrimSpace(part), "="); name {
			case "Credential":
				credential = value
			case "SignedHeaders":
				headers = value
			}
		}
		f.Region = r.Header.Get("X-Amz-Region-Set")
	} else if !strings.Contains(r.URL.RawQuery, "X-Amz-Algorithm=") { // no SDK writes it in another way
		return f, ErrUnsigned
	} else if query := r.URL.Query(); query.Has("X-Amz-Algorithm") {
		f.Query, f.Algorithm, f.Region = true, query.Get("X-Amz-Algorithm"), query.Get("X-Amz-Region-Set")
		credential, headers = query.Get("X-Amz-Credential"), query.Get("X-Amz-SignedHeaders")
		if f.Expires, err = strconv.Atoi(query.Get("X-Amz-Expires")); err != nil || f.Expires < 1 {
			f.Expires = 1
		}
	} else {
		return f, ErrUnsigned
	}
	scope := strings.Split(credential, "/") // the key's ID may have a slash in it
	n := len(scope)
	switch {
	case f.Algorithm == V4 && n >= 5 && scope[n-1] == end:
		f.Region, f.Service = scope[n-3], scope[n-2]
	case f.Algorithm == V4a && n >= 4 && scope[n-1] == end && f.Region != "":
		f.Service = scope[n-2]
	default:
		return f, errors.New("the request's signature is not one of SigV4 or SigV4a")
	}
	if !named(f.Service, "") || !named(f.Region, "*,") {
		return f, errors.New("the request is signed for a service or a region that no name can be of")
	}
	f.Headers = strings.Split(strings.ToLower(headers), ";")
	return f, nil
}

// named tells whether a text can be the name of a service or a region, with some
// characters besides. The date, the region and the service that a signature is for stand
// between separators in it.
func named(text, also string) bool {
	return text != "" && len(text) <= 256 && !strings.ContainsFunc(text, func(c rune) bool {
		return c > unicode.MaxASCII || !unreserved(byte(c)) && !strings.ContainsRune(also, c)
	})
}

// parameters are those that a signature in the query consists of.
var parameters = []string{
	"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Signature", "X-Amz-Security-Token", "X-Amz-Region-Set",
}

// Sign signs a request in place of how it is signed. payload is the hex SHA-256 of its body
// or one of the names that stand for one. The path and the query are sent as they are
// signed. The signature is what the first chunk of a body in aws-chunked form refers to.
func (k *Keys) Sign(r *http.Request, f Form, payload string, now time.Time) (signature string, err error) {
	s := k.signer(f, now)
	request, names := k.prepare(r, s, f, payload)
	if signature, err = s.sign(f.Algorithm, hash(request)); err != nil {
		return "", err
	}
	if f.Query {
		r.URL.RawQuery += "&X-Amz-Signature=" + signature
	} else {
		r.Header["Authorization"] = []string{f.Algorithm + " Credential=" + k.ID + "/" + s.scope + ", SignedHeaders=" + names + ", Signature=" + signature}
	}
	return signature, nil
}

// prepare makes a request what it is to be but for its signature, and returns the text of
// it that is signed, and the names of the headers in that.
func (k *Keys) prepare(r *http.Request, s *signer, f Form, payload string) (request []byte, names string) {
	for _, name := range []string{"Authorization", "X-Amz-Date", "X-Amz-Security-Token", "X-Amz-Region-Set"} {
		delete(r.Header, name)
	}
	q := slices.DeleteFunc(readQuery(r.URL.RawQuery), func(p parameter) bool {
		const prefix = "x-amz-"
		return len(p.name) > len(prefix) && strings.EqualFold(p.name[:len(prefix)], prefix) &&
			slices.ContainsFunc(parameters, func(name string) bool { return strings.EqualFold(name, p.name) })
	})
	if !f.Query {
		r.Header["X-Amz-Date"] = []string{s.time}
		if k.Session != "" {
			r.Header["X-Amz-Security-Token"] = []string{k.Session}
		}
		if f.Algorithm == V4a {
			r.Header["X-Amz-Region-Set"] = []string{f.Region}
		}
	}
	signed, headers := canonicalHeaders(r, f.Headers)
	names = string(signed)
	if f.Query {
		q.add("X-Amz-Algorithm", f.Algorithm)
		q.add("X-Amz-Credential", k.ID+"/"+s.scope)
		q.add("X-Amz-Date", s.time)
		q.add("X-Amz-Expires", strconv.Itoa(f.Expires))
		q.add("X-Amz-SignedHeaders", names)
		if k.Session != "" {
			q.add("X-Amz-Security-Token", k.Session)
		}
		if f.Algorithm == V4a {
			q.add("X-Amz-Region-Set", f.Region)
		}
	}
	escaped := r.URL.EscapedPath()
	sent, canonical := paths(escaped, f.Service)
	if escaped != sent {
		r.URL.RawPath = sent // another spelling of the same path
	}
	r.URL.RawQuery = q.String()
	request = make([]byte, 0, 128+len(canonical)+len(r.URL.RawQuery)+len(headers)+len(names))
	for _, line := range []string{r.Method, canonical} {
		request = append(append(request, line...), '\n')
	}
	request = append(append(q.canonical(request), '\n'), headers...)
	request = append(append(append(request, '\n'), names...), '\n')
	return append(request, payload...), names
}

// signer signs texts at one time for one scope.
type signer struct {
	keys        *Keys
	algorithm   string
	time, scope string
	hmacs       *sync.Pool // with the key, of V4
}

func (k *Keys) signer(f Form, now time.Time) *signer {
	now = now.UTC()
	s := &signer{keys: k, algorithm: f.Algorithm, time: now.Format(timeFormat)}
	day := s.time[:len(dayFormat)]
	if f.Algorithm == V4a {
		s.scope = day + "/" + f.Service + "/" + end
		return s
	}
	s.scope = day + "/" + f.Region + "/" + f.Service + "/" + end
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.hmacs = k.scopes[s.scope]; s.hmacs != nil {
		return s
	}
	key := mac(mac(mac(mac([]byte("AWS4"+k.Secret), day), f.Region), f.Service), end)
	s.hmacs = &sync.Pool{New: func() any { return hmac.New(sha256.New, key) }}
	if k.scopes == nil || len(k.scopes) >= maxScopes {
		k.scopes = make(map[string]*sync.Pool)
	}
	k.scopes[s.scope] = s.hmacs
	return s
}

// sign signs lines under the name of what they are.
func (s *signer) sign(what string, lines ...string) (string, error) {
	text := make([]byte, 0, 384)
	text = append(append(append(append(append(text, what...), '\n'), s.time...), '\n'), s.scope...)
	for _, line := range lines {
		text = append(append(text, '\n'), line...)
	}
	if s.algorithm == V4 {
		h := s.hmacs.Get().(stdhash.Hash)
		defer s.hmacs.Put(h)
		h.Reset()
		h.Write(text)
		var sum [sha256.Size]byte
		return hexed([sha256.Size]byte(h.Sum(sum[:0]))), nil
	}
	key, err := s.keys.ecdsa()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	signature, err := ecdsa.SignASN1(rand.Reader, key, sum[:])
	return hex.EncodeToString(signature), err
}

// ecdsa derives the key of V4a from the others (NIST FIPS 186-4, appendix B.4.2, with the
// key derivation of NIST SP 800-108 in counter mode).
func (k *Keys) ecdsa() (*ecdsa.PrivateKey, error) {
	k.once.Do(func() {
		curve := elliptic.P256()
		most := new(big.Int).Sub(curve.Params().N, big.NewInt(2))
		for counter := byte(1); counter < 255; counter++ {
			candidate := new(big.Int).SetBytes(mac([]byte("AWS4A"+k.Secret), "\x00\x00\x00\x01"+V4a+"\x00"+k.ID+string([]byte{counter})+"\x00\x00\x01\x00"))
			if candidate.Cmp(most) > 0 {
				continue
			}
			k.key, k.err = ecdsa.ParseRawPrivateKey(curve, candidate.Add(candidate, big.NewInt(1)).FillBytes(make([]byte, 32)))
			return
		}
		k.err = errors.New("no key of SigV4a can be derived from the secret access key")
	})
	return k.key, k.err
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

func hash(text []byte) string {
	return hexed(sha256.Sum256(text))
}

// hexed is hex.EncodeToString with one allocation.
func hexed(sum [sha256.Size]byte) string {
	var text [2 * sha256.Size]byte
	hex.Encode(text[:], sum[:])
	return string(text[:])
}

// canonicalHeaders are the names and lines of what is signed: host, x-amz-*, and what else
// is listed and there.
func canonicalHeaders(r *http.Request, listed []string) (names, lines []byte) {
	type line struct{ name, key string }
	all := make([]line, 0, len(r.Header)+2)
	for key := range r.Header {
		name := strings.ToLower(key)
		if name != "host" && name != "content-length" && (strings.HasPrefix(name, "x-amz-") || slices.Contains(listed, name)) {
			all = append(all, line{name, key})
		}
	}
	all = append(all, line{name: "host"})
	if slices.Contains(listed, "content-length") && r.ContentLength > 0 {
		all = append(all, line{name: "content-length"})
	}
	slices.SortFunc(all, func(a, b line) int {
		return cmp.Or(strings.Compare(a.name, b.name), strings.Compare(a.key, b.key))
	})
	signed, text := make([]byte, 0, 128), make([]byte, 0, 384)
	for i, l := range all {
		again := i > 0 && all[i-1].name == l.name // in other letters
		if again {
			text[len(text)-1] = ','
		} else {
			if i > 0 {
				signed = append(signed, ';')
			}
			signed = append(signed, l.name...)
			text = append(append(text, l.name...), ':')
		}
		switch {
		case l.name == "host":
			text = append(text, hostOf(r)...)
		case l.name == "content-length":
			text = strconv.AppendInt(text, r.ContentLength, 10)
		default:
			for j, v := range r.Header[l.key] {
				if j > 0 {
					text = append(text, ',')
				}
				text = appendTrimmed(text, v)
			}
		}
		text = append(text, '\n')
	}
	return signed, text
}

// appendTrimmed adds a header's value with each run of white space (RFC 9110, section
// 5.6.3) made one space, and none around it.
func appendTrimmed(text []byte, value string) []byte {
	space, begun := false, false
	for i := range len(value) {
		c := value[i]
		if c == ' ' || c == '\t' {
			space = begun
			continue
		}
		if space {
			text = append(text, ' ')
		}
		space, begun = false, true
		text = append(text, c)
	}
	return text
}

func hostOf(r *http.Request) string {
	if r.Host != "" {
		return r.Host
	}
	return r.URL.Host
}

// onceEncoded are the services that sign a path as it is sent. All others sign it
// normalised and encoded once more.
var onceEncoded = []string{"s3", "s3express", "s3-outposts", "s3-object-lambda"}

// paths are an encoded path as it is sent and as it is signed.
func paths(escaped, service string) (sent, canonical string) {
	if escaped == "" {
		escaped = "/"
	}
	if slices.Contains(onceEncoded, service) {
		sent = encode(escaped, "/%")
		return sent, sent
	}
	clean := path.Clean(escaped)
	if strings.HasSuffix(escaped, "/") && clean != "/" {
		clean += "/"
	}
	return escaped, encode(clean, "/")
}

// encode encodes all but RFC 3986's unreserved characters and some others.
func encode(text, others string) string {
	const digits = "0123456789ABCDEF"
	clean := func(c byte) bool { return unreserved(c) || strings.IndexByte(others, c) >= 0 }
	first := 0
	for first < len(text) && clean(text[first]) {
		first++
	}
	if first == len(text) {
		return text
	}
	b := append(make([]byte, 0, len(text)+32), text[:first]...)
	for i := first; i < len(text); i++ {
		if c := text[i]; clean(c) {
			b = append(b, c)
		} else {
			b = append(b, '%', digits[c>>4], digits[c&0xf])
		}
	}
	return string(b)
}

// unreserved are the characters of RFC 3986, section 2.3.
func unreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '.' || c == '_' || c == '~'
}
