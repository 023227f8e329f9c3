package validate

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"sallyport/internal/hostname"
	"sallyport/policy"
	"sallyport/policy/finding"
)

// storable are the names of secrets in the embedded store.
var storable = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// exchange checks what a credential's secret is exchanged for.
func (v *validator) exchange(path string, e *policy.Exchange) {
	if e == nil {
		return
	}
	given := 0
	if e.OAuth2 != nil {
		given++
		v.oauth2(path+".oauth2", e.OAuth2)
	}
	if e.JWT != nil {
		given++
		v.jwt(path+".jwt", e.JWT)
	}
	if e.GitHubApp != nil {
		given++
		v.gitHubApp(path+".githubApp", e.GitHubApp)
	}
	if e.GCP != nil {
		given++
		v.gcp(path+".gcp", e.GCP)
	}
	if e.Azure != nil {
		given++
		v.azure(path+".azure", e.Azure)
	}
	if e.AWS != nil {
		given++
		v.aws(path+".aws", e.AWS)
	}
	if given != 1 {
		v.bad(path, fmt.Sprintf("has %d of oauth2, jwt, githubApp, gcp, azure and aws", given), "write exactly one")
	}
}

// bad is say of a credential.
func (v *validator) bad(path, message, fix string) { v.say(finding.BadCredential, path, message, fix) }

// needed checks that a key of an exchange is written.
func (v *validator) needed(path, key, value, example string) bool {
	if value == "" {
		v.bad(path, "has no "+key, "write "+key+": "+example)
	}
	return value != ""
}

// endpoint checks the URL of something that is shown a secret.
func (v *validator) endpoint(path, address string) {
	if address == "" {
		return
	}
	if u, err := hostname.ParseURL(address); err != nil || u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" {
		v.bad(path, "is not the https URL of an endpoint that can be shown a secret", "write one as https://auth.example.com/token, without a name or password in it")
	}
}

func (v *validator) algorithm(path, name string) {
	v.oneOf(finding.BadCredential, path+".algorithm", name, "is not an algorithm", "write RS256, ES256, EdDSA or HS256", policy.JWTAlgorithms()...)
}

func (v *validator) oauth2(path string, o *policy.OAuth2Exchange) {
	v.needed(path, "tokenURL", o.TokenURL, "https://auth.example.com/token")
	v.endpoint(path+".tokenURL", o.TokenURL)
	v.oneOf(finding.BadCredential, path+".grant", o.Grant, "is not a grant", "write clientCredentials, refreshToken or jwtBearer",
		policy.GrantClientCredentials, policy.GrantRefreshToken, policy.GrantJWTBearer)
	v.oneOf(finding.BadCredential, path+".clientAuth", o.ClientAuth, "is not a way to authenticate a client", "write basic, post or privateKeyJWT",
		policy.ClientAuthBasic, policy.ClientAuthPost, policy.ClientAuthPrivateKeyJWT)
	bearer, signs := o.Grant == policy.GrantJWTBearer, o.ClientAuth == policy.ClientAuthPrivateKeyJWT
	if o.ClientID == "" && (!bearer || signs) {
		v.needed(path, "clientID", "", "and the client's ID")
	}
	if a := o.Assertion; a != nil {
		at := path + ".assertion"
		v.algorithm(at, a.Algorithm)
		switch {
		case !bearer && !signs:
			v.bad(at, "is of no use: nothing is signed", "remove it, or write grant: jwtBearer or clientAuth: privateKeyJWT")
		case !bearer && (a.Issuer != "" || a.Subject != ""):
			v.bad(at, "has an issuer or a subject, which for privateKeyJWT are the clientID", "remove them")
		}
	}
	if bearer && o.ClientID == "" && (o.Assertion == nil || o.Assertion.Issuer == "") {
		v.bad(path, "has no issuer for the JWT of the grant", "write assertion: {issuer: agents}")
	}
}

// registered are the claims that have keys of their own, or that the time decides.
var registered = map[string]string{
	"iss": "write issuer", "sub": "write subject", "aud": "write audience", "exp": "write lifetime", "iat": "remove it", "nbf": "remove it", "jti": "remove it",
}

func (v *validator) jwt(path string, j *policy.JWTExchange) {
	if v.needed(path, "algorithm", j.Algorithm, "ES256") {
		v.algorithm(path, j.Algorithm)
	}
	if d := time.Duration(j.Lifetime); d != 0 && (d < time.Minute || d > time.Hour) {
		v.bad(path+".lifetime", fmt.Sprintf("%v is not from 1m to 1h", j.Lifetime), "write a time as 10m, or leave it out for 5m")
	}
	for _, claim := range slices.Sorted(maps.Keys(j.Claims)) {
		if fix, own := registered[claim]; own {
			v.bad(path+".claims."+claim, "is not one of the other claims", fix)
		}
	}
}

func (v *validator) gitHubApp(path string, g *policy.GitHubAppExchange) {
	v.needed(path, "appID", g.AppID, `"12345"`)
	if v.needed(path, "installationID", g.InstallationID, `"67890"`) && strings.Trim(g.InstallationID, "0123456789") != "" {
		v.bad(path+".installationID", fmt.Sprintf("%.64q is not a number", g.InstallationID), "write the number at the end of the address of the installation's settings")
	}
	v.endpoint(path+".url", g.URL)
	for i, name := range g.Repositories {
		if name == "" || strings.Contains(name, "/") {
			v.bad(fmt.Sprintf("%s.repositories[%d]", path, i), fmt.Sprintf("%.200q is not the name of a repository", name), "write it without its owner, as docs")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(g.Permissions)) {
		at := path + ".permissions." + name
		v.oneOf(finding.BadCredential, at, g.Permissions[name], "is not a permission", "write read, write or admin", "read", "write", "admin")
		if g.Permissions[name] == "" {
			v.bad(at, "is empty", "write read, write or admin")
		}
	}
}

func (v *validator) gcp(path string, g *policy.GCPExchange) {
	if (len(g.Scopes) > 0) == (g.Audience != "") {
		v.bad(path, "has not exactly one of scopes and audience", "write scopes for an access token, or audience for an ID token")
	}
	v.endpoint(path+".tokenURL", g.TokenURL)
	w := g.WorkloadIdentity
	if w == nil {
		return
	}
	at := path + ".workloadIdentity"
	if v.needed(at, "provider", w.Provider, "//iam.googleapis.com/projects/…/providers/…") && !strings.HasPrefix(w.Provider, "//iam.googleapis.com/") {
		v.bad(at+".provider", fmt.Sprintf("%.200q is not the full name of a provider", w.Provider), "write one as //iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q")
	}
	if g.Audience != "" && w.ServiceAccount == "" {
		v.bad(at, "has no serviceAccount, and only a service account has ID tokens", "write serviceAccount: and its address")
	}
	if g.TokenURL != "" {
		v.bad(path+".tokenURL", "is of no use with workloadIdentity, which asks sts.googleapis.com", "remove it")
	}
}

func (v *validator) azure(path string, a *policy.AzureExchange) {
	if v.needed(path, "tenant", a.Tenant, "and the directory's ID") && !policy.IsToken(a.Tenant) {
		v.bad(path+".tenant", fmt.Sprintf("%.200q is not a directory's ID or domain", a.Tenant), "write one as contoso.example.com")
	}
	v.needed(path, "clientID", a.ClientID, "and the application's ID")
	if len(a.Scopes) == 0 {
		v.needed(path, "scopes", "", `["https://graph.microsoft.com/.default"]`)
	}
	for i, scope := range a.Scopes {
		if !strings.HasSuffix(scope, "/.default") {
			v.bad(fmt.Sprintf("%s.scopes[%d]", path, i), fmt.Sprintf("%.200q is not one that client credentials can ask for", scope), "write the resource's with /.default after it, as https://graph.microsoft.com/.default")
		}
	}
	v.endpoint(path+".authority", a.Authority)
}

var (
	roleForm    = regexp.MustCompile(`^arn:aws[a-z-]*:iam::[0-9]{12}:role/.`)
	sessionForm = regexp.MustCompile(`^[A-Za-z0-9_+=,.@-]{2,64}$`)
	regionForm  = regexp.MustCompile(`^[a-z]{2}(-[a-z]+)+-[0-9]+$`)
)

func (v *validator) aws(path string, a *policy.AWSExchange) {
	if v.needed(path, "roleARN", a.RoleARN, "arn:aws:iam::123456789012:role/agent") && !roleForm.MatchString(a.RoleARN) {
		v.bad(path+".roleARN", fmt.Sprintf("%.200q is not the ARN of a role", a.RoleARN), "write one as arn:aws:iam::123456789012:role/agent")
	}
	if v.needed(path, "region", a.Region, "eu-central-1") && !regionForm.MatchString(a.Region) {
		v.bad(path+".region", fmt.Sprintf("%.64q is not a region", a.Region), "write one as eu-central-1")
	}
	if a.SessionName != "" && !sessionForm.MatchString(a.SessionName) {
		v.bad(path+".sessionName", fmt.Sprintf("%.64q is not the name of a session", a.SessionName), "write 2 to 64 letters, digits and _+=,.@-")
	}
	if d := time.Duration(a.Lifetime); d != 0 && (d < 15*time.Minute || d > 12*time.Hour) {
		v.bad(path+".lifetime", fmt.Sprintf("%v is not from 15m to 12h", a.Lifetime), "write a time as 30m, or leave it out for 1h")
	}
	if a.Policy != "" && !json.Valid([]byte(a.Policy)) {
		v.bad(path+".policy", "is not JSON", "write a session policy as AWS takes it, in single quotes")
	}
	v.endpoint(path+".url", a.URL)
}

// exchanged checks that a rule can give what its credential is exchanged for.
func (v *validator) exchanged(path string, e policy.EgressAuthRule) {
	i := v.find(e.AuthRef)
	if i < 0 {
		return
	}
	c := v.doc.Credentials[i]
	switch {
	case e.Inject == nil && c.Exchange != nil && c.Exchange.AWS != nil:
		v.say(finding.BadInject, path, fmt.Sprintf("injects the credential %q as a bearer token, and it is exchanged for keys of AWS", c.Name), "say where they go with inject:")
	case e.Inject != nil && e.Inject.TokenEndpoint && len(e.Paths) == 0:
		v.say(finding.BadInject, path+".inject.tokenEndpoint", "answers all requests to the destination", "write paths: [/oauth/token], as the program's endpoint has it")
	case e.Inject != nil && e.Inject.TokenEndpoint && c.Placeholder == nil:
		v.say(finding.BadInject, path+".inject.tokenEndpoint", fmt.Sprintf("has no placeholder of the credential %q to answer with", c.Name), "write placeholder: {env: NAME, like: how a token begins} in the credential")
	}
}
