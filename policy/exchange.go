package policy

import "slices"

// Exchange is what a credential's secret is exchanged for before a request gets it:
// a short-lived token, in the field token, or short-lived AWS keys. The daemon makes
// the exchange; the secret itself goes to the token endpoint and nowhere else. Exactly
// one field is set. Every URL in it is https.
type Exchange struct {
	// OAuth2 asks a token endpoint of OAuth 2.0 (RFC 6749, RFC 7523).
	// Example: {tokenURL: "https://auth.example.com/token", clientID: agent, scopes: [read]}
	OAuth2 *OAuth2Exchange `yaml:"oauth2" json:"oauth2,omitempty"`
	// JWT signs a JSON Web Token with the secret, which is the token itself.
	// Example: {algorithm: ES256, issuer: agents, audience: [api.example.com]}
	JWT *JWTExchange `yaml:"jwt" json:"jwt,omitempty"`
	// GitHubApp asks GitHub for an installation's token.
	// Example: {appID: "12345", installationID: "67890", repositories: [docs]}
	GitHubApp *GitHubAppExchange `yaml:"githubApp" json:"githubApp,omitempty"`
	// GCP asks Google Cloud for an access token or an ID token.
	// Example: {scopes: ["https://www.googleapis.com/auth/cloud-platform"]}
	GCP *GCPExchange `yaml:"gcp" json:"gcp,omitempty"`
	// Azure asks Microsoft Entra ID for an access token.
	// Example: {tenant: contoso.example.com, clientID: 11111111-2222-3333-4444-555555555555, scopes: ["https://graph.microsoft.com/.default"]}
	Azure *AzureExchange `yaml:"azure" json:"azure,omitempty"`
	// AWS asks the AWS Security Token Service for the keys of a role.
	// Example: {roleARN: "arn:aws:iam::123456789012:role/agent", region: eu-central-1}
	AWS *AWSExchange `yaml:"aws" json:"aws,omitempty"`
}

// Grants of an OAuth2Exchange.
const (
	GrantClientCredentials = "clientCredentials"
	GrantRefreshToken      = "refreshToken"
	GrantJWTBearer         = "jwtBearer"
)

// Ways in which the client of an OAuth2Exchange says who it is.
const (
	ClientAuthBasic         = "basic"
	ClientAuthPost          = "post"
	ClientAuthPrivateKeyJWT = "privateKeyJWT"
)

// OAuth2Exchange asks a token endpoint of OAuth 2.0. The secret has the field
// clientSecret, refreshToken or privateKey, as grant and clientAuth need them; a secret
// with one field alone may have any name for it.
type OAuth2Exchange struct {
	// TokenURL is the token endpoint.
	// Example: https://auth.example.com/oauth/token
	TokenURL string `yaml:"tokenURL" json:"tokenURL"`
	// Grant is clientCredentials, refreshToken or jwtBearer. A new refresh token
	// in an answer is kept before the access token is used. Default: clientCredentials.
	// Example: refreshToken
	Grant string `yaml:"grant" json:"grant,omitempty"`
	// ClientID is the client's, as the authorization server knows it.
	// Example: agent
	ClientID string `yaml:"clientID" json:"clientID,omitempty"`
	// ClientAuth is basic, post or privateKeyJWT. A client without a secret, which
	// grants other than clientCredentials allow, sends its clientID alone.
	// Default: basic.
	// Example: privateKeyJWT
	ClientAuth string `yaml:"clientAuth" json:"clientAuth,omitempty"`
	// Scopes lists what is asked for. Default: what the server gives.
	// Example: [read, write]
	Scopes []string `yaml:"scopes" json:"scopes,omitempty"`
	// Audience is whom the token is for, where the server asks for that.
	// Example: https://api.example.com
	Audience string `yaml:"audience" json:"audience,omitempty"`
	// Resource lists what the token is for, as URIs (RFC 8707).
	// Example: ["https://api.example.com"]
	Resource []string `yaml:"resource" json:"resource,omitempty"`
	// Assertion says how JWTs for jwtBearer and privateKeyJWT are signed.
	// Example: {algorithm: ES256, keyID: k1}
	Assertion *Assertion `yaml:"assertion" json:"assertion,omitempty"`
	// JSON sends the parameters as a JSON object, which some servers want in place
	// of a form. Default: false.
	// Example: true
	JSON bool `yaml:"json" json:"json,omitempty"`
	// Roots is a PEM file of the certificate authorities to trust for the endpoint
	// instead of the system's.
	// Example: corp.pem
	Roots string `yaml:"roots" json:"roots,omitempty"`
}

// Assertion says how a JWT that a token endpoint is shown is signed (RFC 7523).
type Assertion struct {
	// Algorithm is RS256, ES256, EdDSA or HS256. Default: RS256.
	// Example: ES256
	Algorithm string `yaml:"algorithm" json:"algorithm,omitempty"`
	// KeyID is the header kid. Default: none.
	// Example: k1
	KeyID string `yaml:"keyID" json:"keyID,omitempty"`
	// Issuer is the claim iss of the grant jwtBearer. Default: the clientID.
	// Example: agents
	Issuer string `yaml:"issuer" json:"issuer,omitempty"`
	// Subject is the claim sub of the grant jwtBearer. Default: the issuer.
	// Example: someone@example.com
	Subject string `yaml:"subject" json:"subject,omitempty"`
	// Audience is the claim aud. Default: the tokenURL.
	// Example: https://auth.example.com
	Audience string `yaml:"audience" json:"audience,omitempty"`
}

// JWTExchange signs a token. The secret has the field privateKey, in PEM, or key for
// HS256; a secret with one field alone may have any name for it.
type JWTExchange struct {
	// Algorithm is RS256, ES256, EdDSA or HS256.
	// Example: ES256
	Algorithm string `yaml:"algorithm" json:"algorithm"`
	// KeyID is the header kid. Default: none.
	// Example: k1
	KeyID string `yaml:"keyID" json:"keyID,omitempty"`
	// Issuer is the claim iss. Default: none.
	// Example: agents
	Issuer string `yaml:"issuer" json:"issuer,omitempty"`
	// Subject is the claim sub. Default: none.
	// Example: build
	Subject string `yaml:"subject" json:"subject,omitempty"`
	// Audience is the claim aud. Default: none.
	// Example: [api.example.com]
	Audience []string `yaml:"audience" json:"audience,omitempty"`
	// Claims are others.
	// Example: {role: reader}
	Claims map[string]any `yaml:"claims" json:"claims,omitempty"`
	// Lifetime is how long a token is valid, up to 1h. Default: 5m.
	// Example: 10m
	Lifetime Duration `yaml:"lifetime" json:"lifetime,omitzero"`
}

// GitHubAppExchange asks GitHub for a token of an installation of an app. The secret
// has the field privateKey, in PEM, or any one field.
type GitHubAppExchange struct {
	// AppID is the app's ID or client ID.
	// Example: "12345"
	AppID string `yaml:"appID" json:"appID"`
	// InstallationID is the number in the address of the installation's settings.
	// Example: "67890"
	InstallationID string `yaml:"installationID" json:"installationID"`
	// Repositories lists those that the token is for, without their owner. Default:
	// all of the installation's.
	// Example: [docs, website]
	Repositories []string `yaml:"repositories" json:"repositories,omitempty"`
	// Permissions are those of the token. Default: all of the installation's.
	// Example: {contents: read, pull_requests: write}
	Permissions map[string]string `yaml:"permissions" json:"permissions,omitempty"`
	// URL is that of the API. Default: https://api.github.com.
	// Example: https://github.example.com/api/v3
	URL string `yaml:"url" json:"url,omitempty"`
	// Roots is a PEM file of the certificate authorities to trust for the API
	// instead of the system's.
	// Example: corp.pem
	Roots string `yaml:"roots" json:"roots,omitempty"`
}

// GCPExchange asks Google Cloud for a token. The secret is the JSON of a service
// account's key, in one field; with workloadIdentity it is an identity token of
// another provider's, in the field token or in its only one.
type GCPExchange struct {
	// Scopes lists those of an access token.
	// Example: ["https://www.googleapis.com/auth/devstorage.read_only"]
	Scopes []string `yaml:"scopes" json:"scopes,omitempty"`
	// Audience asks for an ID token in place of an access token, and is whom it is for.
	// Example: https://service-abc.a.run.app
	Audience string `yaml:"audience" json:"audience,omitempty"`
	// TokenURL is the token endpoint of service accounts. Default: the token_uri of the
	// key, which is then one of googleapis.com.
	// Example: https://oauth2.googleapis.com/token
	TokenURL string `yaml:"tokenURL" json:"tokenURL,omitempty"`
	// WorkloadIdentity exchanges a token of another provider's (RFC 8693).
	// Example: {provider: "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q"}
	WorkloadIdentity *WorkloadIdentity `yaml:"workloadIdentity" json:"workloadIdentity,omitempty"`
	// Roots is a PEM file of the certificate authorities to trust for the endpoints
	// instead of the system's.
	// Example: corp.pem
	Roots string `yaml:"roots" json:"roots,omitempty"`
}

// WorkloadIdentity is a workload identity federation of Google Cloud.
type WorkloadIdentity struct {
	// Provider is the full name of the pool's provider.
	// Example: //iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q
	Provider string `yaml:"provider" json:"provider"`
	// ServiceAccount is the one to impersonate. Default: none; an ID token needs one.
	// Example: agent@project.iam.gserviceaccount.com
	ServiceAccount string `yaml:"serviceAccount" json:"serviceAccount,omitempty"`
}

// AzureExchange asks Microsoft Entra ID for a token by client credentials. The secret
// has the field clientSecret, or certificate and privateKey, both in PEM; a secret with
// one field alone is the client secret.
type AzureExchange struct {
	// Tenant is the directory's ID or domain.
	// Example: contoso.example.com
	Tenant string `yaml:"tenant" json:"tenant"`
	// ClientID is the application's.
	// Example: 11111111-2222-3333-4444-555555555555
	ClientID string `yaml:"clientID" json:"clientID"`
	// Scopes is, for client credentials, a resource's with /.default after it.
	// Example: ["https://graph.microsoft.com/.default"]
	Scopes []string `yaml:"scopes" json:"scopes"`
	// Authority is the login's address. Default: https://login.microsoftonline.com.
	// Example: https://login.microsoftonline.us
	Authority string `yaml:"authority" json:"authority,omitempty"`
	// Roots is a PEM file of the certificate authorities to trust for the authority
	// instead of the system's.
	// Example: corp.pem
	Roots string `yaml:"roots" json:"roots,omitempty"`
}

// AWSExchange asks the Security Token Service for the keys of a role. The secret has
// the fields accessKeyId and secretAccessKey, and sessionToken for keys that are short-lived
// themselves; with webIdentity it is an identity token, in the field token or in its
// only one. Its result has the fields accessKeyId, secretAccessKey and sessionToken.
type AWSExchange struct {
	// RoleARN is the role's.
	// Example: arn:aws:iam::123456789012:role/agent
	RoleARN string `yaml:"roleARN" json:"roleARN"`
	// Region is where the service is asked.
	// Example: eu-central-1
	Region string `yaml:"region" json:"region"`
	// SessionName is what AWS's logs call the session. Default: sallyport.
	// Example: agents
	SessionName string `yaml:"sessionName" json:"sessionName,omitempty"`
	// ExternalID is what the role's owner asks for. Default: none.
	// Example: agents-of-example
	ExternalID string `yaml:"externalID" json:"externalID,omitempty"`
	// Lifetime is how long the keys are valid, 15m to 12h. Default: 1h.
	// Example: 30m
	Lifetime Duration `yaml:"lifetime" json:"lifetime,omitzero"`
	// Policy is a session policy in JSON, which narrows the role's. Default: none.
	// Example: '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:GetObject","Resource":"*"}]}'
	Policy string `yaml:"policy" json:"policy,omitempty"`
	// WebIdentity asks with an identity token (AssumeRoleWithWebIdentity). Default: false.
	// Example: true
	WebIdentity bool `yaml:"webIdentity" json:"webIdentity,omitempty"`
	// URL is the service's. Default: https://sts.REGION.amazonaws.com.
	// Example: https://vpce-1.sts.eu-central-1.vpce.amazonaws.com
	URL string `yaml:"url" json:"url,omitempty"`
	// Roots is a PEM file of the certificate authorities to trust for the service
	// instead of the system's.
	// Example: corp.pem
	Roots string `yaml:"roots" json:"roots,omitempty"`
}

// Roots leads to each file of certificate authorities that the exchange names or could.
func (e *Exchange) Roots() []*string {
	var files []*string
	if e == nil {
		return nil
	}
	if e.OAuth2 != nil {
		files = append(files, &e.OAuth2.Roots)
	}
	if e.GitHubApp != nil {
		files = append(files, &e.GitHubApp.Roots)
	}
	if e.GCP != nil {
		files = append(files, &e.GCP.Roots)
	}
	if e.Azure != nil {
		files = append(files, &e.Azure.Roots)
	}
	if e.AWS != nil {
		files = append(files, &e.AWS.Roots)
	}
	return files
}

// Algorithms are those that a JWT can be signed with.
var algorithms = []string{"RS256", "ES256", "EdDSA", "HS256"}

// JWTAlgorithms returns those that a token can be signed with (RFC 7518).
func JWTAlgorithms() []string { return slices.Clone(algorithms) }
