package credential

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"sallyport/gateway/credential/sigv4"
	"sallyport/policy"
)

// awsKind signs requests with the keys of an AWS account or role, in place of how the
// sandbox has signed them with keys that are worth nothing.
type awsKind policy.AWSInject

// maxExpires bounds, in seconds, for how long a presigned URL is good that leaves: it is
// used at once, and may stay in the upstream's log.
const maxExpires = 300

func (k awsKind) compose(fields map[string]Secret) (*composed, error) {
	id, _, err := k.field(fields, "accessKeyId", "access_key")
	if err != nil {
		return nil, err
	}
	secret, name, err := k.field(fields, "secretAccessKey", "secret_key")
	if err != nil {
		return nil, err
	}
	used := []string{name}
	session, name, err := k.field(fields, "sessionToken", "security_token", "session_token")
	if err == nil {
		used = append(used, name)
	}
	keys := &sigv4.Keys{ID: id, Secret: secret, Session: session}
	c := &composed{sign: func(r *http.Request, s Signing) (string, error) { return k.sign(keys, r, s) }}
	return c.keeps(used, fields), nil
}

// field is the first that is there of those that may hold a part of the keys.
func (k awsKind) field(fields map[string]Secret, names ...string) (value, name string, err error) {
	for _, name := range names {
		if f := strings.TrimSpace(fields[name].Reveal()); f != "" {
			return f, name, headerSafe(f)
		}
	}
	return "", "", fmt.Errorf("%w: inject.aws needs the field %s", ErrNoSecret, strings.Join(names, ", or of Vault's "))
}

func (awsKind) own(*http.Request) bool { return false } // it is signed, and signed anew

// form is how a request is to be signed: as it was, within what the rule says.
func (k awsKind) form(r *http.Request) (sigv4.Form, error) {
	f, err := sigv4.Parse(r)
	if errors.Is(err, sigv4.ErrUnsigned) && k.Service != "" && k.Region != "" {
		f, err = sigv4.Form{Algorithm: sigv4.V4, Service: k.Service, Region: k.Region, Headers: []string{"content-type"}}, nil
	}
	switch {
	case r.Method == http.MethodPost && strings.Contains(strings.ToLower(strings.Join(r.Header["Content-Type"], ",")), "multipart/form-data"):
		// S3 takes the signature of such a form for the request's.
		return f, unsignable("a form of parts has its signature in it, which may be of other keys: send it as another request (S3: PutObject)")
	case err != nil:
		return f, unsignable("%v: configure the SDK with any keys, so that it signs", err)
	case k.Service != "" && f.Service != k.Service:
		return f, unsignable("the request is signed for the service %s, and its rule is for %s", policy.Clean(f.Service), k.Service)
	case k.Region != "" && f.Region != k.Region:
		return f, unsignable("the request is signed for the region %s, and its rule is for %s", policy.Clean(f.Region), k.Region)
	}
	f.Expires = min(f.Expires, maxExpires)
	return f, nil
}

// refuses says why a sandbox's request cannot be signed, or nil.
func (k awsKind) refuses(r *http.Request) error {
	_, err := k.form(r)
	return err
}

func (k awsKind) sign(keys *sigv4.Keys, r *http.Request, s Signing) (signature string, err error) {
	f, err := k.form(s.Sent)
	if err != nil {
		return "", err
	}
	if err := refuseIssuing(r, f.Service, s); err != nil {
		return "", err
	}
	payload, err := k.payload(r, f, s)
	if err != nil {
		return "", err
	}
	if signature, err = keys.Sign(r, f, payload, s.Now); err != nil {
		return "", err
	}
	if payload == sigv4.Chunked || payload == sigv4.ChunkedTrailer {
		r.Body = keys.NewChunks(r.Body, f, signature, payload == sigv4.ChunkedTrailer, s.Now, s.Room)
	}
	return signature, nil
}

// payload is what stands for the body in the signature.
func (k awsKind) payload(r *http.Request, f sigv4.Form, s Signing) (string, error) {
	const header = "X-Amz-Content-Sha256"
	said := r.Header.Get(header)
	if said == "" && f.Query {
		said = r.URL.Query().Get(header)
	}
	empty := r.Body == nil || r.Body == http.NoBody
	switch {
	case said == sigv4.Unsigned, said == sigv4.UnsignedTrailer, len(said) == len(sigv4.Empty) && strings.Trim(said, "0123456789abcdefABCDEF") == "":
		return said, nil
	case said == sigv4.Chunked || said == sigv4.ChunkedTrailer:
		if empty || f.Algorithm != sigv4.V4 || f.Query {
			return "", unsignable("the body is not signed in chunks as %s says", header)
		}
		return said, nil
	case said != "":
		return "", unsignable("a body that is signed as %s cannot be signed anew", policy.Clean(said))
	case strings.HasPrefix(f.Service, "s3"): // TLS protects the body
		if !f.Query {
			r.Header.Set(header, sigv4.Unsigned)
		}
		return sigv4.Unsigned, nil
	case empty:
		return sigv4.Empty, nil
	}
	return s.Hash()
}
