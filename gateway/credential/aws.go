package credential

import (
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"path"
	"slices"
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

// issuingActions are the actions of AWS whose answers have keys, tokens or passwords in them.
// The list is closed. Of STS, keylessActions decides too.
var issuingActions = []string{
	"CreateAccessKey", "CreateServiceSpecificCredential", "ResetServiceSpecificCredential", // IAM
	"AssumeRole", "AssumeRoleWithSAML", "AssumeRoleWithWebIdentity", "AssumeRoot", "GetFederationToken", "GetSessionToken", // STS
	"GetAuthorizationToken", "authorization-token", // ECR, CodeArtifact
	"GetClusterCredentials", "GetClusterCredentialsWithIAM", "GetCredentials", // Redshift
	"GetTemporaryGlueTableCredentials", "GetTemporaryGluePartitionCredentials", "GetTemporaryDataLocationCredentials", // Lake Formation
}

// pathServices are the services whose path names the action.
var pathServices = []string{"codeartifact", "lakeformation"}

// formServices are the services that take their action from a form, which may be the body.
var formServices = []string{"iam", "redshift", "sts"}

// keylessActions are the actions of STS that give no keys: all of STS that is signed.
var keylessActions = []string{"DecodeAuthorizationMessage", "GetAccessKeyInfo", "GetCallerIdentity"}

// maxForm bounds a form that names an action, in bytes.
const maxForm = 256 << 10

// refuseIssuing refuses a request whose answer would give the sandbox keys of its own: they
// would be worth as much as those that sign it, and be good elsewhere and for longer.
func refuseIssuing(r *http.Request, service string, s Signing) error {
	var actions []string
	for name, values := range r.Header {
		if len(name) == len("x-amz-target") && fold(name) == "x-amz-target" {
			for _, v := range values {
				actions = append(actions, v[strings.LastIndexByte(v, '.')+1:])
			}
		}
	}
	switch whole := r.URL.Path; {
	case strings.HasPrefix(service, "s3"):
		if r.Method == http.MethodGet && strings.ContainsAny(r.URL.RawQuery, "s%") && slices.Contains(policy.QueryKeys(r.URL.RawQuery), "session") {
			return issuingError("CreateSession")
		}
		if strings.HasSuffix(whole, "/accessgrantsinstance/dataaccess") {
			return issuingError("GetDataAccess")
		}
	case slices.Contains(pathServices, service), strings.Contains(whole, "/operation/"): // RPC v2
		actions = append(actions, path.Base(whole))
	}
	if slices.Contains(formServices, service) {
		named, err := formActions(r, s)
		if err != nil {
			return err
		}
		if service == "sts" && (len(named) != 1 || !slices.Contains(keylessActions, named[0])) {
			return issuingError(strings.Join(named, ", "))
		}
		actions = append(actions, named...)
	}
	for _, a := range actions {
		if slices.ContainsFunc(issuingActions, func(name string) bool { return strings.EqualFold(name, strings.TrimSpace(a)) }) {
			return issuingError(a)
		}
	}
	return nil
}

func issuingError(action string) error {
	name := policy.Clean(action)
	if name == "" {
		name = "a request without an action"
	}
	return &RequestError{Status: http.StatusForbidden, Reason: "the answer to " + name +
		" can have keys, a token or a password in it, which no sandbox gets: leave this request out, since the gateway signs the others"}
}

// formActions returns the actions that a request names in its query and in its body.
func formActions(r *http.Request, s Signing) ([]string, error) {
	body, err := s.Body()
	if err != nil {
		return nil, err
	}
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); len(body) > maxForm || len(body) > 0 && (kind != "application/x-www-form-urlencoded" || r.Header.Get("Content-Encoding") != "") {
		return nil, unsignable("the body is no form of at most %d KiB, so that its action cannot be read", maxForm>>10)
	}
	var named []string
	for _, text := range []string{r.URL.RawQuery, string(body)} {
		form, err := url.ParseQuery(text)
		if err != nil {
			return nil, unsignable("the form that names the action cannot be read")
		}
		for name, values := range form {
			if strings.EqualFold(name, "Action") {
				named = append(named, values...)
			}
		}
	}
	return named, nil
}
