package credential

import (
	"maps"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"unicode/utf8"
)

// credentialHeaders are the headers that credentials travel in. The list is closed: a
// header that is not in it passes, so a destination with one of its own needs it named as
// an extra.
var credentialHeaders = set(
	// RFC 9110, RFC 6265, RFC 2965 and what proxies make of them.
	"authorization", "proxy-authorization", "authentication", "x-authorization", "x-proxy-authorization",
	"x-forwarded-authorization", "x-original-authorization", "x-authentication", "cookie", "cookie2",
	// In use by many.
	"api-key", "apikey", "x-api-key", "x-apikey", "x-api-token", "x-api-secret", "x-app-key", "x-application-key",
	"auth-token", "x-auth", "x-auth-token", "x-auth-key", "x-auth-email", "x-auth-secret", "access-token", "x-access-token", "x-access-key",
	"token", "x-token", "x-user-token", "x-session-token", "x-session-id", "session-token", "x-refresh-token", "x-id-token",
	"x-jwt", "x-jwt-token", "x-jwt-assertion", "x-secret", "x-secret-key", "x-client-secret", "x-service-token",
	"x-admin-token", "x-oauth-token", "x-subscription-token", "x-license-key",
	// Clouds.
	"x-amz-security-token", "x-goog-api-key", "x-goog-iam-authorization-token", "x-goog-iap-jwt-assertion",
	"x-serverless-authorization", "x-ms-authorization-auxiliary", "x-ms-copy-source-authorization",
	"x-functions-key", "ocp-apim-subscription-key", "aeg-sas-key", "aeg-sas-token", "x-storage-token", "x-subject-token", "x-zumo-auth",
	// Services.
	"private-token", "job-token", "deploy-token", "x-gitlab-token", "x-github-token", "circle-token",
	"x-vault-token", "x-consul-token", "x-nomad-token", "dd-api-key", "dd-application-key", "x-insert-key",
	"x-query-key", "x-honeycomb-team", "x-jfrog-art-api", "x-nuget-apikey", "x-rapidapi-key", "x-shopify-access-token",
	"x-shopify-storefront-access-token", "x-figma-token", "x-redmine-api-key", "x-postmark-server-token", "x-postmark-account-token",
	"x-typesense-api-key", "x-algolia-api-key", "x-meili-api-key", "xi-api-key", "x-hasura-admin-secret", "x-hasura-access-key",
	"x-plex-token", "x-emby-token", "x-parse-rest-api-key", "x-parse-master-key", "x-parse-session-token", "x-n8n-api-key",
	"x-cisco-meraki-api-key", "x-pagerduty-token", "x-rollbar-access-token", "x-sentry-auth", "x-yandex-api-key",
	"cf-access-client-id", "cf-access-client-secret", "cf-access-token", "x-auth-user-service-key", "x-tableau-auth",
	"x-trackertoken", "x-contentful-token", "x-mashape-key", "x-cmc-pro-api-key", "x-finnhub-token",
)

// credentialKeys are the query keys that credentials travel in, folded by foldKey.
var credentialKeys = set(
	"key", "api_key", "apikey", "api_token", "api_secret", "app_key", "appkey", "app_secret", "application_key", "appid",
	"access_token", "accesstoken", "access_key", "accesskey", "access_key_id", "token", "auth", "auth_token", "authtoken", "authorization",
	"authentication", "oauth_token", "oauth_signature", "id_token", "refresh_token", "session_token", "sessiontoken",
	"private_token", "job_token", "personal_access_token", "bearer", "bearer_token", "jwt", "assertion", "client_secret", "client_assertion",
	"secret", "secret_key", "password", "passwd", "pwd", "sig", "signature", "hmac", "subscription_key", "x_api_key", "x_auth_token",
	"x_access_token", "awsaccesskeyid", "x_amz_credential", "x_amz_signature", "x_amz_security_token",
	"googleaccessid", "x_goog_credential", "x_goog_signature", "x_goog_api_key", "circle_token", "hapikey",
)

// hopByHop are the headers that end at the next hop (RFC 9110, section 7.6.1,
// and those that RFC 2616 named).
var hopByHop = set("connection", "proxy-connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade",
	"http2-settings", "proxy-authenticate", "proxy-authorization", "proxy-authentication-info")

// framing are the headers that say where a message goes and ends.
var framing = set("host", "content-length")

func set(names ...string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, n := range names {
		m[n] = true
	}
	return m
}

// fold is the form in which header names are compared: servers that pass
// headers on as CGI variables take X_Api_Key for X-Api-Key.
func fold(header string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimSpace(header)), "_", "-")
}

// appendFold appends what fold returns: a map can be asked for string(bytes)
// without making the string.
func appendFold(dst []byte, header string) []byte {
	start := len(dst)
	for _, c := range []byte(header) {
		switch {
		case c <= ' ' || c >= utf8.RuneSelf:
			return append(dst[:start], fold(header)...)
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
		case c == '_':
			c = '-'
		}
		dst = append(dst, c)
	}
	return dst
}

// foldKey is the form in which query keys are compared: PHP takes api.key,
// "api key" and api_key[] for api_key.
func foldKey(key string) string {
	key, _, _ = strings.Cut(key, "[")
	return underscores.Replace(strings.ToLower(strings.TrimSpace(key)))
}

var underscores = strings.NewReplacer("-", "_", ".", "_", " ", "_")

// StripRequest removes everything from a request that a sandbox could carry a
// credential of its own in, and everything that would undo an injection:
//
//   - hop-by-hop headers and those that Connection names, before all else, so
//     that "Connection: Authorization" does nothing later; only
//     "Te: trailers", which gRPC needs, is set again
//   - the headers in a closed list (Authorization, cookies, API keys of services
//     in wide use) and those in extra, in any case, with _ for - too
//   - the query keys in a closed list (key, api_key, access_token, sig …), in any
//     case, and parameters whose key cannot be decoded
//   - user information in the URL, and trailers
//
// It does not look into the body.
func StripRequest(r *http.Request, extra ...string) {
	var drop map[string]bool
	also := func(name string) {
		if drop == nil {
			drop = make(map[string]bool)
		}
		drop[fold(name)] = true
	}
	for _, name := range extra {
		also(name)
	}
	trailers := false
	var space [64]byte
	for name, values := range r.Header {
		if !connectionLike(name) {
			continue
		}
		switch string(appendFold(space[:0], name)) {
		case "connection", "proxy-connection":
			for _, v := range values {
				for token := range strings.SplitSeq(v, ",") {
					also(textproto.TrimString(token))
				}
			}
		case "te":
			for _, v := range values {
				for token := range strings.SplitSeq(v, ",") {
					coding, _, _ := strings.Cut(token, ";")
					trailers = trailers || strings.EqualFold(textproto.TrimString(coding), "trailers")
				}
			}
		}
	}
	for name := range r.Header {
		if n := appendFold(space[:0], name); strippedHeaders[string(n)] || drop[string(n)] {
			delete(r.Header, name)
		}
	}
	if trailers {
		r.Header["Te"] = []string{"trailers"}
	}
	r.Trailer = nil
	r.URL.User = nil
	r.URL.RawQuery = withoutKeys(r.URL.RawQuery, func(key string) bool { return credentialKeys[key] })
}

// strippedHeaders are always removed from a request.
var strippedHeaders = func() map[string]bool {
	all := maps.Clone(hopByHop)
	maps.Copy(all, credentialHeaders)
	return all
}()

// connectionLike tells whether a name may be that of a header which names others,
// by its length, white space aside.
func connectionLike(name string) bool {
	switch len(strings.TrimSpace(name)) {
	case len("te"), len("connection"), len("proxy-connection"):
		return true
	}
	return false
}

// withoutKeys leaves out the parameters whose folded key is to go, or cannot be
// decoded, and keeps the others byte for byte. Some servers take ; for &, so a
// parameter ends there too.
func withoutKeys(query string, gone func(key string) bool) string {
	var kept strings.Builder
	for query != "" {
		part, sep := query, ""
		if i := strings.IndexAny(query, "&;"); i >= 0 {
			part, sep = query[:i], query[i:i+1]
		}
		query = query[len(part)+len(sep):]
		key, _, _ := strings.Cut(part, "=")
		name, err := url.QueryUnescape(key)
		if err != nil || gone(foldKey(name)) {
			continue
		}
		kept.WriteString(part)
		kept.WriteString(sep)
	}
	return strings.TrimRight(kept.String(), "&;")
}

// grantHeaders are the headers by which a server gives its client something as good as the
// request's credential (RFC 6265, RFC 2965, RFC 9110, section 11.6.3).
var grantHeaders = set("set-cookie", "set-cookie2", "authentication-info", "proxy-authentication-info")

// StripResponse removes from the head or the trailers of a response to a request with an
// injected credential everything that its sender could use in the credential's place:
// cookies, and the headers that [StripRequest] would remove from the next request.
//
// It does not look into the body, nor into URLs.
func StripResponse(h http.Header) {
	var space [64]byte
	for name := range h {
		if n := appendFold(space[:0], name); grantHeaders[string(n)] || credentialHeaders[string(n)] {
			delete(h, name)
		}
	}
}

// StripTrailers removes the names of trailers that StripRequest would remove from the
// header, and those of the header itself: servers that merge trailers into the header
// would have two.
func StripTrailers(trailer, header http.Header) {
	var space [64]byte
	for name := range trailer {
		n := string(appendFold(space[:0], name))
		if strippedHeaders[n] {
			delete(trailer, name)
			continue
		}
		for other := range header {
			if string(appendFold(space[:0], other)) == n {
				delete(trailer, name)
				break
			}
		}
	}
}
