package exchange_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sallyport/gateway/credential"
	"sallyport/gateway/credential/exchange"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// The server is written from GitHub's documentation, "Generating an installation access
// token for a GitHub App" and "Create an installation access token for an app"
// (API version 2022-11-28).
func TestGitHubAppAsDocumented(t *testing.T) {
	all := false
	server, roots := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
		refuse := func(status int, message string) {
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"message":%q,"documentation_url":"https://docs.github.com/rest"}`, message)
		}
		_, claims := verify(t, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), keys()["RS256"])
		now, exp, iat := float64(time.Now().Unix()), claims["exp"].(float64), claims["iat"].(float64)
		switch {
		case r.Method != http.MethodPost || r.URL.Path != "/api/v3/app/installations/67890/access_tokens":
			refuse(http.StatusNotFound, "Not Found")
		case claims["iss"] != "12345":
			refuse(http.StatusUnauthorized, "A JSON web token could not be decoded")
		case exp > now+600:
			refuse(http.StatusUnauthorized, "'Expiration time' claim ('exp') is too far in the future")
		case iat > now-59:
			refuse(http.StatusUnauthorized, "'Issued at' claim ('iat') must be an Integer representing the time that the assertion was issued")
		case r.Header.Get("User-Agent") == "" || r.Header.Get("Accept") != "application/vnd.github+json" || r.Header.Get("X-GitHub-Api-Version") != "2022-11-28":
			refuse(http.StatusForbidden, "Request forbidden by administrative rules.")
		default:
			var asked struct {
				Repositories []string          `json:"repositories"`
				Permissions  map[string]string `json:"permissions"`
			}
			must.OK(t, json.NewDecoder(r.Body).Decode(&asked))
			if asked.Permissions["administration"] != "" {
				refuse(http.StatusUnprocessableEntity, "The permissions requested are not granted to this installation.")
				return
			}
			selection := "selected"
			if len(asked.Repositories) == 0 || all {
				selection = "all"
			}
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, `{"token":"ghs_%s_%s","expires_at":%q,"permissions":{"contents":"read"},"repository_selection":%q}`,
				strings.Join(asked.Repositories, "+"), asked.Permissions["contents"], time.Now().Add(time.Hour).UTC().Format(time.RFC3339), selection)
		}
	})
	app := policy.GitHubAppExchange{AppID: "12345", InstallationID: "67890", URL: server.URL + "/api/v3", Roots: roots}
	key := fixed{"privateKey": pemOf(t, keys()["RS256"]), "webhookSecret": "x"}
	if got, m := read(t, source(t, policy.Exchange{GitHubApp: &app}, key)); got["token"] != "ghs__" || time.Until(m.Expires) > time.Hour || time.Until(m.Expires) < 59*time.Minute {
		t.Errorf("got %v until %v", got, m.Expires)
	}
	app.Repositories, app.Permissions = []string{"docs", "website"}, map[string]string{"contents": "read"}
	if got, _ := read(t, source(t, policy.Exchange{GitHubApp: &app}, key)); got["token"] != "ghs_docs+website_read" {
		t.Errorf("got %v", got)
	}
	all = true
	if _, err := source(t, policy.Exchange{GitHubApp: &app}, key).Read(t.Context()); !errors.Is(err, credential.ErrRefused) || !strings.Contains(err.Error(), "all repositories") {
		t.Errorf("a token for more than was asked for: %v", err)
	}
	app.Permissions = map[string]string{"administration": "write"}
	if _, err := source(t, policy.Exchange{GitHubApp: &app}, key).Read(t.Context()); !errors.Is(err, credential.ErrRefused) || !strings.Contains(err.Error(), "not granted") {
		t.Errorf("a refusal: %v", err)
	}
}

// The servers are written from Google Cloud's documentation: "Using OAuth 2.0 for Server to
// Server Applications", "Workload Identity Federation" (its REST reference of
// sts.googleapis.com) and the IAM Service Account Credentials API.
func TestGoogleCloudAsDocumented(t *testing.T) {
	const email, provider = "agent@project.iam.gserviceaccount.com", "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q"
	end := time.Now().Add(30 * time.Minute).UTC().Truncate(time.Second)
	idToken := "e30." + base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"exp":%d}`, end.Unix())) + ".c2ln"
	server, roots := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		switch r.Host + r.URL.Path {
		case "oauth2.googleapis.com/token", "internal.example.com/token":
			header, claims := verify(t, r.PostFormValue("assertion"), keys()["RS256"])
			if r.PostFormValue("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" || header["kid"] != "k1" || claims["iss"] != email || claims["aud"] != "https://"+r.Host+"/token" {
				w.WriteHeader(http.StatusBadRequest)
				io.WriteString(w, `{"error":"invalid_grant","error_description":"Invalid JWT"}`)
				return
			}
			if claims["target_audience"] == "https://run.example.com" {
				fmt.Fprintf(w, `{"id_token":%q}`, idToken)
				return
			}
			fmt.Fprintf(w, `{"access_token":"ya29.%s","expires_in":3599,"token_type":"Bearer"}`, claims["scope"])
		case "sts.googleapis.com/v1/token":
			if r.PostFormValue("grant_type") != "urn:ietf:params:oauth:grant-type:token-exchange" || r.PostFormValue("audience") != provider ||
				r.PostFormValue("subject_token") != "the.workload.token" || r.PostFormValue("subject_token_type") != "urn:ietf:params:oauth:token-type:jwt" {
				w.WriteHeader(http.StatusBadRequest)
				io.WriteString(w, `{"error":"invalid_request","error_description":"The subject token the.workload.token is unknown"}`)
				return
			}
			fmt.Fprintf(w, `{"access_token":"federated %s","issued_token_type":"urn:ietf:params:oauth:token-type:access_token","token_type":"Bearer","expires_in":3600}`, r.PostFormValue("scope"))
		case "iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/" + email + ":generateAccessToken":
			if r.Header.Get("Authorization") != "Bearer federated https://www.googleapis.com/auth/cloud-platform" || string(body) != `{"scope":["scope-1"]}` {
				w.WriteHeader(http.StatusForbidden)
				io.WriteString(w, `{"error":{"code":403,"message":"Permission 'iam.serviceAccounts.getAccessToken' denied","status":"PERMISSION_DENIED"}}`)
				return
			}
			fmt.Fprintf(w, `{"accessToken":"impersonated","expireTime":%q}`, end.Format(time.RFC3339))
		case "iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/" + email + ":generateIdToken":
			if string(body) != `{"audience":"https://run.example.com","includeEmail":true}` {
				t.Errorf("asked for %s", body)
			}
			fmt.Fprintf(w, `{"token":%q}`, idToken)
		default:
			t.Errorf("a request for %s%s", r.Host, r.URL.Path)
		}
	}, "oauth2.googleapis.com", "sts.googleapis.com", "iamcredentials.googleapis.com", "internal.example.com", "evil.example.com", "googleapis.com.example.com")
	exchange.DialTo(t, server.Listener.Addr().String())

	account := func(tokenURI string) fixed {
		text, err := json.Marshal(map[string]string{
			"type": "service_account", "client_email": email, "private_key": pemOf(t, keys()["RS256"]), "private_key_id": "k1", "token_uri": tokenURI,
		})
		must.OK(t, err)
		return fixed{"json": string(text)}
	}
	const google = "https://oauth2.googleapis.com/token"
	workload := fixed{"token": "the.workload.token\n"}
	for name, tt := range map[string]struct {
		exchange policy.GCPExchange
		fields   fixed
		want     string // the token, or part of the error
		until    time.Duration
	}{
		"access token":          {policy.GCPExchange{Scopes: []string{"a", "b"}}, account(google), "ya29.a b", 3599 * time.Second},
		"ID token":              {policy.GCPExchange{Audience: "https://run.example.com"}, account(google), idToken, 30 * time.Minute},
		"own endpoint":          {policy.GCPExchange{Scopes: []string{"a"}, TokenURL: "https://internal.example.com/token"}, account("https://evil.example.com/token"), "ya29.a", 3599 * time.Second},
		"endpoint of another":   {policy.GCPExchange{Scopes: []string{"a"}}, account("https://evil.example.com/token"), "googleapis.com", 0},
		"name that looks right": {policy.GCPExchange{Scopes: []string{"a"}}, account("https://googleapis.com.example.com/token"), "googleapis.com", 0},
		"with a login in it":    {policy.GCPExchange{Scopes: []string{"a"}}, account("https://x@oauth2.googleapis.com/token"), "googleapis.com", 0},
		"in the clear":          {policy.GCPExchange{Scopes: []string{"a"}}, account("http://oauth2.googleapis.com/token"), "googleapis.com", 0},
		"not a key":             {policy.GCPExchange{Scopes: []string{"a"}}, fixed{"json": "{}"}, "service account", 0},
		"workload":              {policy.GCPExchange{Scopes: []string{"scope-1"}, WorkloadIdentity: &policy.WorkloadIdentity{Provider: provider}}, workload, "federated scope-1", time.Hour},
		"workload, account":     {policy.GCPExchange{Scopes: []string{"scope-1"}, WorkloadIdentity: &policy.WorkloadIdentity{Provider: provider, ServiceAccount: email}}, workload, "impersonated", 30 * time.Minute},
		"workload, ID token":    {policy.GCPExchange{Audience: "https://run.example.com", WorkloadIdentity: &policy.WorkloadIdentity{Provider: provider, ServiceAccount: email}}, workload, idToken, 30 * time.Minute},
		"workload, refused":     {policy.GCPExchange{Scopes: []string{"scope-1"}, WorkloadIdentity: &policy.WorkloadIdentity{Provider: "//iam.googleapis.com/other"}}, workload, "left out", 0},
		"account, refused":      {policy.GCPExchange{Scopes: []string{"scope-2"}, WorkloadIdentity: &policy.WorkloadIdentity{Provider: provider, ServiceAccount: email}}, workload, "PERMISSION_DENIED", 0},
	} {
		t.Run(name, func(t *testing.T) {
			tt.exchange.Roots = roots
			m, err := source(t, policy.Exchange{GCP: &tt.exchange}, tt.fields).Read(t.Context())
			if tt.until == 0 {
				if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "workload.token") {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil || m.Fields["token"].Reveal() != tt.want || (time.Until(m.Expires)-tt.until).Abs() > time.Minute {
				t.Errorf("got %s until %v, %v", m.Fields["token"].Reveal(), m.Expires, err)
			}
		})
	}
}

// The server is written from Microsoft's documentation: "OAuth 2.0 client credentials flow"
// of the identity platform (v2.0) and "Certificate credentials".
func TestAzureAsDocumented(t *testing.T) {
	key := keys()["RS256"].(*rsa.PrivateKey)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(nil, template, template, key.Public(), key)
	must.OK(t, err)
	sum := sha256.Sum256(der)
	var server *httptest.Server
	server, roots := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		by := "secret"
		if r.PostFormValue("client_assertion_type") == "urn:ietf:params:oauth:client-assertion-type:jwt-bearer" {
			by = "certificate"
			header, claims := verify(t, r.PostFormValue("client_assertion"), key)
			if header["alg"] != "PS256" || header["x5t#S256"] != base64.RawURLEncoding.EncodeToString(sum[:]) || header["typ"] != "JWT" ||
				claims["aud"] != server.URL+r.URL.Path || claims["iss"] != "client-1" || claims["sub"] != "client-1" || claims["jti"] == "" {
				t.Errorf("assertion %v %v", header, claims)
			}
		} else if r.PostFormValue("client_secret") != "a-client-secret" {
			w.WriteHeader(http.StatusUnauthorized)
			io.WriteString(w, `{"error":"invalid_client","error_description":"AADSTS7000215: Invalid client secret provided.","error_codes":[7000215]}`)
			return
		}
		if r.URL.Path != "/contoso.example.com/oauth2/v2.0/token" || r.PostFormValue("grant_type") != "client_credentials" || r.PostFormValue("client_id") != "client-1" {
			t.Errorf("asked %s for %s", r.URL.Path, r.PostFormValue("grant_type"))
		}
		fmt.Fprintf(w, `{"token_type":"Bearer","expires_in":3599,"access_token":"by %s for %s"}`, by, r.PostFormValue("scope"))
	})
	e := policy.Exchange{Azure: &policy.AzureExchange{
		Tenant: "contoso.example.com", ClientID: "client-1", Scopes: []string{"https://graph.microsoft.com/.default"}, Authority: server.URL + "/", Roots: roots,
	}}
	certificate := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	for want, fields := range map[string]fixed{
		"by secret for https://graph.microsoft.com/.default":      {"clientSecret": "a-client-secret"},
		"by certificate for https://graph.microsoft.com/.default": {"certificate": certificate, "privateKey": pemOf(t, key)},
	} {
		if got, m := read(t, source(t, e, fields)); got["token"] != want || time.Until(m.Expires) > time.Hour {
			t.Errorf("got %v until %v, want %s", got, m.Expires, want)
		}
	}
	if _, err := source(t, e, fixed{"clientSecret": "another-secret"}).Read(t.Context()); err == nil || !strings.Contains(err.Error(), "AADSTS7000215") {
		t.Errorf("got %v", err)
	}
}

// The server is written from the AWS STS API Reference (version 2011-06-15).
func TestAWSRoleAsDocumented(t *testing.T) {
	const id, key, session = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "a-session-token"
	end := time.Now().Add(30 * time.Minute).UTC().Truncate(time.Second)
	server, roots := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		action := r.PostFormValue("Action")
		if action == "AssumeRole" && !signedAs(r, body, id, key) {
			w.WriteHeader(http.StatusForbidden)
			io.WriteString(w, `<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type><Code>SignatureDoesNotMatch</Code><Message>The request signature we calculated does not match the signature you provided.</Message></Error><RequestId>1</RequestId></ErrorResponse>`)
			return
		}
		if r.PostFormValue("RoleArn") != "arn:aws:iam::123456789012:role/agent" || r.PostFormValue("DurationSeconds") != "1800" || r.PostFormValue("RoleSessionName") != "sallyport" ||
			r.PostFormValue("Version") != "2011-06-15" || action == "AssumeRoleWithWebIdentity" && (r.PostFormValue("WebIdentityToken") != "an.identity.token" || r.Header.Get("Authorization") != "") {
			t.Errorf("asked for %s", body)
		}
		fmt.Fprintf(w, `<%[1]sResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><%[1]sResult><Credentials><AccessKeyId>ASIA</AccessKeyId><SecretAccessKey>short %[2]s</SecretAccessKey><SessionToken>session</SessionToken><Expiration>%[3]s</Expiration></Credentials></%[1]sResult></%[1]sResponse>`,
			action, r.Header.Get("X-Amz-Security-Token"), end.Format(time.RFC3339))
	})
	role := policy.AWSExchange{RoleARN: "arn:aws:iam::123456789012:role/agent", Region: "eu-central-1", Lifetime: policy.Duration(30 * time.Minute), URL: server.URL, Roots: roots}
	identity := role
	identity.WebIdentity = true
	for name, tt := range map[string]struct {
		exchange policy.AWSExchange
		fields   fixed
		want     string
	}{
		"keys":         {role, fixed{"accessKeyId": id, "secretAccessKey": key}, "short "},
		"session keys": {role, fixed{"accessKeyId": id, "secretAccessKey": key, "sessionToken": session}, "short " + session},
		"web identity": {identity, fixed{"token": "an.identity.token"}, "short "},
	} {
		t.Run(name, func(t *testing.T) {
			got, m := read(t, source(t, policy.Exchange{AWS: &tt.exchange}, tt.fields))
			if len(got) != 3 || got["accessKeyId"] != "ASIA" || got["secretAccessKey"] != tt.want || got["sessionToken"] != "session" || !m.Expires.Equal(end) {
				t.Errorf("got %v until %v", got, m.Expires)
			}
		})
	}
	for want, fields := range map[string]fixed{
		"SignatureDoesNotMatch": {"accessKeyId": id, "secretAccessKey": "another-key"},
		"secretAccessKey":       {"accessKeyId": id},
	} {
		if _, err := source(t, policy.Exchange{AWS: &role}, fields).Read(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// signedAs verifies a request by "Create a signed AWS API request" of AWS's documentation.
func signedAs(r *http.Request, body []byte, id, key string) bool {
	sum := func(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }
	mac := func(key []byte, text string) []byte {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	head, signature, _ := strings.Cut(r.Header.Get("Authorization"), ", Signature=")
	login, signed, _ := strings.Cut(head, ", SignedHeaders=")
	at := r.Header.Get("X-Amz-Date")
	scope := at[:8] + "/eu-central-1/sts/aws4_request"
	canonical := r.Method + "\n" + r.URL.Path + "\n\n"
	for _, name := range strings.Split(signed, ";") {
		value := r.Header.Get(name)
		switch name {
		case "host":
			value = r.Host
		case "content-length":
			value = strconv.Itoa(len(body))
		}
		canonical += name + ":" + value + "\n"
	}
	canonical += "\n" + signed + "\n" + sum(string(body))
	derived := []byte("AWS4" + key)
	for _, part := range strings.Split(scope, "/") {
		derived = mac(derived, part)
	}
	token := r.Header.Get("X-Amz-Security-Token") == "" || slices.Contains(strings.Split(signed, ";"), "x-amz-security-token")
	return token && login == "AWS4-HMAC-SHA256 Credential="+id+"/"+scope &&
		signature == hex.EncodeToString(mac(derived, "AWS4-HMAC-SHA256\n"+at+"\n"+scope+"\n"+sum(canonical)))
}
