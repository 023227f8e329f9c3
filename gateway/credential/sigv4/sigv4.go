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
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
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
}

// ErrUnsigned is the error of Parse for a request without a signature.
var ErrUnsigned = errors.New("the request has no signature of AWS")

// Parse reads how a request is signed. It checks no signature.
func Parse(r *http.Request) (f Form, err error) {
	var credential, headers string
	query := r.URL.Query()
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
	} else if query.Has("X-Amz-Algorithm") {
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
	f.Headers = strings.Split(strings.ToLower(headers), ";")
	return f, nil
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
		r.Header.Set("Authorization", fmt.Sprintf("%s Credential=%s/%s, SignedHeaders=%s, Signature=%s", f.Algorithm, k.ID, s.scope, names, signature))
	}
	return signature, nil
}

// prepare makes a request what it is to be but for its signature, and returns the text of
// it that is signed, and the names of the headers in that.
func (k *Keys) prepare(r *http.Request, s *signer, f Form, payload string) (request, names string) {
	for _, name := range []string{"Authorization", "X-Amz-Date", "X-Amz-Security-Token", "X-Amz-Region-Set"} {
		r.Header.Del(name)
	}
	q := slices.DeleteFunc(readQuery(r.URL.RawQuery), func(p parameter) bool {
		return slices.ContainsFunc(parameters, func(name string) bool { return strings.EqualFold(name, p.name) })
	})
	if !f.Query {
		r.Header.Set("X-Amz-Date", s.time)
		if k.Session != "" {
			r.Header.Set("X-Amz-Security-Token", k.Session)
		}
		if f.Algorithm == V4a {
			r.Header.Set("X-Amz-Region-Set", f.Region)
		}
	}
	names, headers := canonicalHeaders(r, f.Headers)
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
	sent, canonical := paths(r.URL.EscapedPath(), f.Service)
	if r.URL.EscapedPath() != sent {
		r.URL.RawPath = sent // another spelling of the same path
	}
	r.URL.RawQuery = q.String()
	return strings.Join([]string{r.Method, canonical, q.canonical(), headers, names, payload}, "\n"), names
}

// signer signs texts at one time for one scope.
type signer struct {
	keys        *Keys
	algorithm   string
	time, scope string
	hmac        []byte // the key, of V4
}

func (k *Keys) signer(f Form, now time.Time) *signer {
	now = now.UTC()
	day := now.Format(dayFormat)
	s := &signer{keys: k, algorithm: f.Algorithm, time: now.Format(timeFormat)}
	if f.Algorithm == V4a {
		s.scope = strings.Join([]string{day, f.Service, end}, "/")
		return s
	}
	s.scope = strings.Join([]string{day, f.Region, f.Service, end}, "/")
	s.hmac = mac(mac(mac(mac([]byte("AWS4"+k.Secret), day), f.Region), f.Service), end)
	return s
}

// sign signs lines under the name of what they are.
func (s *signer) sign(what string, lines ...string) (string, error) {
	text := strings.Join(append([]string{what, s.time, s.scope}, lines...), "\n")
	if s.algorithm == V4 {
		return hex.EncodeToString(mac(s.hmac, text)), nil
	}
	key, err := s.keys.ecdsa()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(text))
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

func hash[T string | []byte](text T) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// canonicalHeaders are the names and lines of what is signed: host, x-amz-*, and what else
// is listed and there.
func canonicalHeaders(r *http.Request, listed []string) (names, lines string) {
	values := map[string]string{"host": hostOf(r)}
	if slices.Contains(listed, "content-length") && r.ContentLength > 0 {
		values["content-length"] = strconv.FormatInt(r.ContentLength, 10)
	}
	keys := make([]string, 0, len(r.Header))
	for key := range r.Header {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		name := strings.ToLower(key)
		if name == "host" || name == "content-length" || !strings.HasPrefix(name, "x-amz-") && !slices.Contains(listed, name) {
			continue
		}
		for i, v := range r.Header[key] {
			if _, more := values[name]; more || i > 0 {
				values[name] += ","
			}
			values[name] += strings.Join(strings.Fields(v), " ")
		}
	}
	all := make([]string, 0, len(values))
	for name := range values {
		all = append(all, name)
	}
	slices.Sort(all)
	var b strings.Builder
	for _, name := range all {
		b.WriteString(name + ":" + values[name] + "\n")
	}
	return strings.Join(all, ";"), b.String()
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
	var b strings.Builder
	for i := range len(text) {
		c := text[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0 || strings.IndexByte(others, c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
