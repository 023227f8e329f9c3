package credential

import (
	"mime"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"sallyport/policy"
)

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
