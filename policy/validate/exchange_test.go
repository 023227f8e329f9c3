package validate_test

import (
	"reflect"
	"strings"
	"testing"

	"sallyport/internal/config"
)

// Each mistake in an exchange is named by its key.
func TestExchange(t *testing.T) {
	for _, tt := range []struct{ name, exchange, want, fix string }{
		{"nothing", "{}", "exchange: has 0 of oauth2", "exactly one"},
		{"two", "{jwt: {algorithm: ES256}, oauth2: {tokenURL: 'https://a.example.com', clientID: x}}", "exchange: has 2 of oauth2", "exactly one"},

		{"client credentials", "{oauth2: {tokenURL: 'https://a.example.com/token', clientID: x, scopes: [read], roots: corp.pem}}", "", ""},
		{"a public client", "{oauth2: {tokenURL: 'https://a.example.com/token', clientID: x, grant: refreshToken, json: true}}", "", ""},
		{"a JWT", "{oauth2: {tokenURL: 'https://a.example.com/token', grant: jwtBearer, assertion: {issuer: x, algorithm: ES256}}}", "", ""},
		{"no endpoint", "{oauth2: {clientID: x}}", "exchange.oauth2: has no tokenURL", "tokenURL: https://"},
		{"an endpoint in the clear", "{oauth2: {tokenURL: 'http://127.0.0.1/token', clientID: x}}", "exchange.oauth2.tokenURL: https", "https://"},
		{"an endpoint with a password", "{oauth2: {tokenURL: 'https://x:s3cr3t@a.example.com/token', clientID: x}}", "exchange.oauth2.tokenURL: https", "without a name"},
		{"an unknown grant", "{oauth2: {tokenURL: 'https://a.example.com', clientID: x, grant: refreshtoken}}", "exchange.oauth2.grant: is not a grant", "did you mean refreshToken"},
		{"an unknown client auth", "{oauth2: {tokenURL: 'https://a.example.com', clientID: x, clientAuth: header}}", "exchange.oauth2.clientAuth: is not a way", "basic"},
		{"no client", "{oauth2: {tokenURL: 'https://a.example.com'}}", "exchange.oauth2: has no clientID", "clientID:"},
		{"no issuer", "{oauth2: {tokenURL: 'https://a.example.com', grant: jwtBearer}}", "exchange.oauth2: has no issuer", "assertion:"},
		{"an assertion for nothing", "{oauth2: {tokenURL: 'https://a.example.com', clientID: x, assertion: {keyID: k}}}", "exchange.oauth2.assertion: of no use", "remove it"},
		{"a subject of a client's key", "{oauth2: {tokenURL: 'https://a.example.com', clientID: x, clientAuth: privateKeyJWT, assertion: {subject: y}}}", "exchange.oauth2.assertion: has an issuer or a subject", "remove"},
		{"an unknown algorithm", "{oauth2: {tokenURL: 'https://a.example.com', clientID: x, clientAuth: privateKeyJWT, assertion: {algorithm: none}}}", "exchange.oauth2.assertion.algorithm: is not an algorithm", "RS256"},

		{"a token", "{jwt: {algorithm: EdDSA, issuer: a, audience: [b], claims: {role: r, groups: [x, y], level: 3}, lifetime: 1h}}", "", ""},
		{"no algorithm", "{jwt: {issuer: a}}", "exchange.jwt: has no algorithm", "ES256"},
		{"algorithm none", "{jwt: {algorithm: none}}", "exchange.jwt.algorithm: is not an algorithm", "RS256"},
		{"a long life", "{jwt: {algorithm: ES256, lifetime: 61m}}", "exchange.jwt.lifetime: 1m to 1h", "10m"},
		{"a claim with a key", "{jwt: {algorithm: ES256, claims: {exp: 1}}}", "exchange.jwt.claims.exp: is not one", "lifetime"},

		{"an app", `{githubApp: {appID: "1", installationID: "2", repositories: [docs], permissions: {contents: read}}}`, "", ""},
		{"no app", `{githubApp: {installationID: "2"}}`, "exchange.githubApp: has no appID", "appID:"},
		{"no installation", `{githubApp: {appID: "1"}}`, "exchange.githubApp: has no installationID", "installationID:"},
		{"a name of an installation", `{githubApp: {appID: "1", installationID: "../1"}}`, "exchange.githubApp.installationID: is not a number", "number"},
		{"an owner", `{githubApp: {appID: "1", installationID: "2", repositories: [docs, o/docs]}}`, "exchange.githubApp.repositories[1]: is not the name", "without its owner"},
		{"a permission", `{githubApp: {appID: "1", installationID: "2", permissions: {contents: all}}}`, "exchange.githubApp.permissions.contents: is not a permission", "read"},
		{"a permission of nothing", `{githubApp: {appID: "1", installationID: "2", permissions: {contents: ""}}}`, "exchange.githubApp.permissions.contents: is empty", "read"},
		{"an API in the clear", `{githubApp: {appID: "1", installationID: "2", url: 'http://github.example.com'}}`, "exchange.githubApp.url: https", "https"},

		{"a service account", "{gcp: {scopes: [a]}}", "", ""},
		{"a workload", "{gcp: {audience: a, workloadIdentity: {provider: '//iam.googleapis.com/p', serviceAccount: x@y}}}", "", ""},
		{"neither token", "{gcp: {}}", "exchange.gcp: has not exactly one of scopes and audience", "scopes"},
		{"both tokens", "{gcp: {scopes: [a], audience: b}}", "exchange.gcp: has not exactly one of scopes and audience", "audience"},
		{"no provider", "{gcp: {scopes: [a], workloadIdentity: {}}}", "exchange.gcp.workloadIdentity: has no provider", "provider:"},
		{"a provider's URL", "{gcp: {scopes: [a], workloadIdentity: {provider: 'https://iam.googleapis.com/p'}}}", "exchange.gcp.workloadIdentity.provider: full name", "//iam.googleapis.com/"},
		{"an ID token of nobody", "{gcp: {audience: a, workloadIdentity: {provider: '//iam.googleapis.com/p'}}}", "exchange.gcp.workloadIdentity: has no serviceAccount", "serviceAccount:"},
		{"an endpoint that is not asked", "{gcp: {scopes: [a], tokenURL: 'https://a.example.com', workloadIdentity: {provider: '//iam.googleapis.com/p'}}}", "exchange.gcp.tokenURL: of no use", "remove"},

		{"an application", "{azure: {tenant: t.example.com, clientID: c, scopes: ['https://graph.microsoft.com/.default'], authority: 'https://login.microsoftonline.us'}}", "", ""},
		{"no tenant", "{azure: {clientID: c, scopes: [a/.default]}}", "exchange.azure: has no tenant", "tenant:"},
		{"a path for a tenant", "{azure: {tenant: a/b, clientID: c, scopes: [a/.default]}}", "exchange.azure.tenant: is not a directory", "contoso"},
		{"no application", "{azure: {tenant: t, scopes: [a/.default]}}", "exchange.azure: has no clientID", "clientID:"},
		{"no scope", "{azure: {tenant: t, clientID: c}}", "exchange.azure: has no scopes", ".default"},
		{"a user's scope", "{azure: {tenant: t, clientID: c, scopes: [User.Read]}}", "exchange.azure.scopes[0]: client credentials", ".default"},

		{"a role", "{aws: {roleARN: 'arn:aws:iam::123456789012:role/a', region: us-gov-west-1, lifetime: 12h, policy: '{}'}}", "", ""},
		{"no role", "{aws: {region: eu-central-1}}", "exchange.aws: has no roleARN", "arn:aws"},
		{"a user", "{aws: {roleARN: 'arn:aws:iam::123456789012:user/a', region: eu-central-1}}", "exchange.aws.roleARN: ARN of a role", "arn:aws"},
		{"no region", "{aws: {roleARN: 'arn:aws:iam::123456789012:role/a'}}", "exchange.aws: has no region", "eu-central-1"},
		{"a host for a region", "{aws: {roleARN: 'arn:aws:iam::123456789012:role/a', region: evil.example.com/}}", "exchange.aws.region: is not a region", "eu-central-1"},
		{"a short life", "{aws: {roleARN: 'arn:aws:iam::123456789012:role/a', region: eu-central-1, lifetime: 5m}}", "exchange.aws.lifetime: 15m to 12h", "30m"},
		{"a session with spaces", "{aws: {roleARN: 'arn:aws:iam::123456789012:role/a', region: eu-central-1, sessionName: 'a b'}}", "exchange.aws.sessionName: is not the name", "letters"},
		{"a policy in YAML", "{aws: {roleARN: 'arn:aws:iam::123456789012:role/a', region: eu-central-1, policy: 'Version: 1'}}", "exchange.aws.policy: is not JSON", "single quotes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inject := ""
			if strings.HasPrefix(tt.exchange, "{aws") {
				inject = ", inject: {header: {name: X-Key, value: '{{ .secretAccessKey }}'}}"
			}
			c, err := config.Parse("sallyport.yaml", []byte("egressAuth: [{destination: a.example.com, authRef: k"+inject+"}]\ncredentials: [{name: k, exchange: "+tt.exchange+"}]"))
			if tt.want == "" {
				if err != nil {
					t.Errorf("got %v", err)
				}
				for _, roots := range c.Credentials[0].Exchange.Roots() {
					if *roots != "" && !strings.HasPrefix(*roots, "/") {
						t.Errorf("roots is %s", *roots)
					}
				}
				return
			}
			at, message, _ := strings.Cut(tt.want, ": ")
			if err == nil || !strings.Contains(err.Error(), "credentials[0]."+at) || !strings.Contains(err.Error(), message) || !strings.Contains(err.Error(), tt.fix) || strings.Contains(err.Error(), "s3cr3t") {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
	c, err := config.Parse("sallyport.yaml", []byte("egressAuth: [{destination: a.example.com, authRef: k}]\ncredentials: [{name: k, exchange: {jwt: {algorithm: ES256, claims: {role: r, 'on': true, level: 3, groups: [x, {y: z}], none: null}}}}]"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"role": "r", "on": true, "level": 3., "groups": []any{"x", map[string]any{"y": "z"}}, "none": nil}
	if got := c.Credentials[0].Exchange.JWT.Claims; !reflect.DeepEqual(got, want) {
		t.Errorf("claims are %#v, want %#v", got, want)
	}
	if _, err := config.Parse("sallyport.yaml", []byte("egressAuth: [{destination: a.example.com, authRef: k, paths: [/token], inject: {tokenEndpoint: true}}]\ncredentials: [{name: k, placeholder: {env: K}}]")); err != nil {
		t.Error(err)
	}
	for name, yaml := range map[string]string{
		"a bearer token of AWS":               "egressAuth: [{destination: a.example.com, authRef: k}]\ncredentials: [{name: k, exchange: {aws: {roleARN: 'arn:aws:iam::123456789012:role/a', region: eu-central-1}}}]",
		"a token endpoint for all paths":      "egressAuth: [{destination: a.example.com, authRef: k, inject: {tokenEndpoint: true}}]\ncredentials: [{name: k, placeholder: {env: K}}]",
		"a token endpoint and no placeholder": "egressAuth: [{destination: a.example.com, authRef: k, paths: [/token], inject: {tokenEndpoint: true}}]\ncredentials: [{name: k}]",
		"a token endpoint and own: deny":      "egressAuth: [{destination: a.example.com, authRef: k, paths: [/token], own: deny, inject: {tokenEndpoint: true}}]\ncredentials: [{name: k, placeholder: {env: K}}]",
		"a token endpoint and a header":       "egressAuth: [{destination: a.example.com, authRef: k, paths: [/token], inject: {tokenEndpoint: true, header: {name: A, value: '{{ .token }}'}}}]\ncredentials: [{name: k, placeholder: {env: K}}]",
		"a login that cannot be kept":         "egressAuth: [{destination: a.example.com, authRef: " + strings.Repeat("k", 65) + "}]\ncredentials: [{name: " + strings.Repeat("k", 65) + ", exchange: {oauth2: {tokenURL: 'https://a.example.com', clientID: x, grant: refreshToken}}}]",
		"a proxy's login":                     "egress: [{destination: a.example.com, upstream: {proxy: 'https://proxy.example.com', proxyAuthRef: k}}]\ncredentials: [{name: k, exchange: {jwt: {algorithm: ES256}}}]",
	} {
		if _, err := config.Parse("sallyport.yaml", []byte(yaml)); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
