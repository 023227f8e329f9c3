package engine_test

import (
	"strings"
	"testing"

	"sallyport/policy"
	"sallyport/policy/engine"
)

// TestMeddles: headers are told by what their names say, in any case and with
// underscores; those of clients in wide use are none.
func TestMeddles(t *testing.T) {
	for want, names := range map[policy.Meddling]string{
		policy.OtherRequest: "X-Http-Method-Override X-Http-Method X-Method-Override X-Original-Method X-Forwarded-Method X-Original-Url X-Original-Uri X-Rewrite-Url X-Override-Url" +
			" X-Forwarded-Uri X-Forwarded-Url X-Forwarded-Path X-Forwarded-Prefix X-Original-Path X-Script-Name X-Original-Host X-Forwarded-Host X-Forwarded-Server X-Host" +
			" X-Http-Host-Override Forwarded X-Envoy-Original-Path X-Envoy-Original-Host X-Real-Url X-RewriteUrl X-Waws-Unencoded-Url X-Original-Request-Uri X_Original_Url x-original-URL X-Url-Override",
		policy.OtherResource: "Destination DESTINATION X-Amz-Copy-Source X-Amz-Copy-Source-Range X-Ms-Copy-Source X-Ms-Rename-Source X-Goog-Copy-Source X-Oss-Copy-Source" +
			" X-Amz-Rename-Source X-Copy-From X-Symlink-Target X-Object-Manifest x_amz_copy_source",
		policy.OtherUser: "Impersonate-User Impersonate-Group Impersonate-Uid Impersonate-Extra-Scopes Sudo Es-Security-Runas-User X-Remote-User Remote-User X-Remote-Group X-Webauth-User" +
			" X-WEBAUTH-USER X-On-Behalf-Of X-Act-As As-User Dropbox-Api-Select-User Dropbox-Api-Select-Admin Api-Username X-Redmine-Switch-User X-Forwarded-User X-Forwarded-Email" +
			" X-Auth-Request-Email X-Authenticated-User X-Goog-Authenticated-User-Email X-Ms-Client-Principal-Id X-Amzn-Oidc-Identity X-Ssl-Client-S-Dn X-Forwarded-Client-Cert" +
			" X-Consumer-Username Tailscale-User-Login X-User-Id X-User-Role X_Remote_User",
		"": "Accept User-Agent X-User-Agent Content-Type Origin Te If-Match Overwrite Depth Idempotency-Key X-Request-Id Traceparent Baggage X-Forwarded-For X-Forwarded-Proto X-Forwarded-Port X-Real-Ip" +
			" X-Stainless-Lang X-Stainless-Retry-Count X-Stainless-Read-Timeout Anthropic-Version Anthropic-Beta Anthropic-Dangerous-Direct-Browser-Access Openai-Organization Openai-Project Openai-Beta" +
			" X-Amz-Date X-Amz-Content-Sha256 X-Amz-Target X-Amz-User-Agent X-Amz-Meta-Original-Path X-Amz-Server-Side-Encryption X-Amz-Expected-Bucket-Owner Amz-Sdk-Invocation-Id Amz-Sdk-Request" +
			" X-Goog-Api-Client X-Goog-User-Project X-Goog-Request-Params X-Ms-Version X-Ms-Client-Request-Id X-Ms-Blob-Type X-Github-Api-Version Graphql-Features Git-Protocol Npm-Command" +
			" Npm-Session Npm-In-Ci Npm-Scope Npm-Auth-Type Pacote-Req-Type Pacote-Version Pacote-Integrity X-Pypi-Last-Serial Docker-Distribution-Api-Version X-Registry-Auth X-Meta-Source-Client" +
			" Kubectl-Command Kubectl-Session Grpc-Timeout Grpc-Accept-Encoding Grpc-Trace-Bin X-Grpc-Test-Echo-Initial X-Envoy-Attempt-Count Stripe-Version Stripe-Account Notion-Version" +
			" X-Requested-With Sec-Websocket-Protocol Sec-Fetch-Site X-Datadog-Trace-Id X-B3-Traceid X-Sentry-Trace Mcp-Session-Id Mcp-Protocol-Version Last-Event-Id Lfs-Authenticate X-Vault-Request",
	} {
		for name := range strings.FieldsSeq(names) {
			if got := policy.Meddles(name); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	}
}

// TestHeadersThatMeddle: what names another resource or user is denied where more than the
// host decides, unless the rule that allows it says so.
func TestHeadersThatMeddle(t *testing.T) {
	const rules = `
egress:
- {name: open, destination: open.example.com}
- {name: paths, destination: paths.example.com, paths: ["/v1/**"]}
- {name: beside, destination: beside.example.com}
- {name: no, destination: beside.example.com, action: deny, paths: ["/admin/**"]}
- {name: dav, destination: dav.example.com, paths: ["/v1/**"], headers: [destination]}
- {name: ask, destination: ask.example.com, paths: ["/v1/**"], action: approve}
egressAuth:
- {name: key, destination: key.example.com, authRef: key}
- {name: kube, destination: kube.example.com, authRef: key, headers: [Impersonate-User, Impersonate-Group]}
credentials: [{name: key}]
`
	p := compile(t, rules, engine.Options{})
	for _, tt := range []struct {
		host, headers string
		want          policy.Action
	}{
		{"open.example.com", "Destination Impersonate-User X-Remote-User", policy.Allow},
		{"paths.example.com", "Accept X-Trace", policy.Allow},
		{"paths.example.com", "Accept Destination", policy.Deny},
		{"paths.example.com", "X-Amz-Copy-Source", policy.Deny},
		{"paths.example.com", "X-Remote-User", policy.Deny},
		{"beside.example.com", "Destination", policy.Deny},
		{"beside.example.com", "Depth", policy.Allow},
		{"dav.example.com", "Depth Destination Overwrite", policy.Allow},
		{"dav.example.com", "Destination X-Copy-From", policy.Deny},
		{"ask.example.com", "Destination", policy.Deny},
		{"ask.example.com", "Depth", policy.Approve},
		{"key.example.com", "Accept X-Stainless-Lang Openai-Project", policy.Allow},
		{"key.example.com", "Impersonate-User", policy.Deny},
		{"key.example.com", "Sudo", policy.Deny},
		{"key.example.com", "Es-Security-Runas-User", policy.Deny},
		{"key.example.com", "X-Webauth-User", policy.Deny},
		{"kube.example.com", "Impersonate-User Impersonate-Group", policy.Allow},
		{"kube.example.com", "Impersonate_user", policy.Allow},
		{"kube.example.com", "Impersonate-Uid", policy.Deny},
	} {
		d := p.Decide(t.Context(), policy.Input{Phase: policy.PhaseRequest, Sandbox: policy.Sandbox{Name: "demo"}, Destination: policy.Destination{Host: tt.host, Port: 443},
			Protocol: policy.ProtocolTLS, Request: &policy.Request{Method: "GET", Scheme: "https", Path: "/v1/x", Headers: strings.Fields(tt.headers)}})
		if d.Action != tt.want || d.Action == policy.Deny && (d.Rule != "override-header" || d.Inject != nil) {
			t.Errorf("%s with %s: %s by %q: %s, want %s", tt.host, tt.headers, d.Action, d.Rule, d.Reason, tt.want)
		}
	}
}
