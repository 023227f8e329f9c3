package validate

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"sallyport/policy"
	"sallyport/policy/finding"
	"sallyport/policy/rule"

	"golang.org/x/net/publicsuffix"
)

// hosting lists domains below which anybody can have a name, and which the
// private section of the public suffix list may not have in the version that is
// compiled in. They are also what a wildcard around such domains is known by,
// since the list cannot be asked for what lies below a name.
var hosting = []string{
	// Amazon: buckets, sites, functions, gateways, distributions.
	"s3.amazonaws.com", "execute-api.us-east-1.amazonaws.com", "lambda-url.us-east-1.on.aws", "cloudfront.net", "awsapprunner.com", "elasticbeanstalk.com",
	// Microsoft: blobs, files, queues, tables, lakes, sites, edges, functions.
	"blob.core.windows.net", "file.core.windows.net", "queue.core.windows.net", "table.core.windows.net", "dfs.core.windows.net", "web.core.windows.net",
	"azurewebsites.net", "azureedge.net", "azurefd.net", "cloudapp.azure.com", "servicebus.windows.net", "vault.azure.net", "documents.azure.com",
	// Google: buckets, apps, functions, sites.
	"storage.googleapis.com", "appspot.com", "run.app", "cloudfunctions.net", "firebaseio.com", "web.app", "firebaseapp.com", "withgoogle.com",
	// Others who store: each customer has a name of its own.
	"r2.cloudflarestorage.com", "r2.dev", "workers.dev", "pages.dev", "trycloudflare.com", "digitaloceanspaces.com", "backblazeb2.com", "wasabisys.com",
	"oraclecloud.com", "aliyuncs.com", "myqcloud.com", "supabase.co", "snowflakecomputing.com", "my.salesforce.com", "atlassian.net", "sharepoint.com",
	// Others who serve: each customer's program gets what is sent.
	"github.io", "githubusercontent.com", "gitlab.io", "netlify.app", "vercel.app", "herokuapp.com", "fly.dev", "onrender.com", "ngrok.io", "ngrok-free.app",
	"ngrok.app", "loca.lt", "hf.space", "replit.dev", "repl.co", "webhook.site", "requestcatcher.com", "oast.fun", "oast.pro", "interact.sh",
}

// celled lists those of hosting that have a region, or a cell, between the domain
// and a customer's name.
var celled = []string{"digitaloceanspaces.com", "backblazeb2.com", "wasabisys.com", "aliyuncs.com", "myqcloud.com", "oraclecloud.com"}

// byPath lists hosts that hold everybody's content, told apart by path alone.
var byPath = []string{
	"storage.googleapis.com", "storage.cloud.google.com", "firebasestorage.googleapis.com",
	"github.com", "raw.githubusercontent.com", "gist.githubusercontent.com", "codeload.github.com", "gist.github.com",
	"gitlab.com", "bitbucket.org", "codeberg.org",
	"huggingface.co", "pastebin.com", "hooks.slack.com", "api.telegram.org", "discord.com", "webhook.site",
	"ghcr.io", "quay.io", "registry-1.docker.io", "gcr.io",
}

// Amazon's own endpoints, with the bucket in the path: s3.amazonaws.com,
// s3.eu-west-1.amazonaws.com, s3-eu-west-1.amazonaws.com, s3.dualstack.….
var s3Endpoint = regexp.MustCompile(`^s3([.-][a-z0-9-]+)*\.amazonaws\.com(\.cn)?$`)

// sharedBelow returns the domain below which a wildcard for *.host takes in names
// of anybody's, or "".
func sharedBelow(host string) string {
	if suffix, icann := publicsuffix.PublicSuffix(host); icann && suffix == host {
		return "" // AnyDomain
	}
	suffix, icann := publicsuffix.PublicSuffix("x." + host)
	if !icann && strings.Contains(suffix, ".") && (suffix == host || suffix == "x."+host) {
		return host
	}
	for _, s := range hosting {
		if s == host || strings.HasSuffix(s, "."+host) {
			return s
		}
		if cell, ok := strings.CutSuffix(host, "."+s); ok && slices.Contains(celled, s) && (!strings.Contains(cell, ".") || strings.HasPrefix(cell, "s3.")) {
			return host
		}
	}
	if s3Endpoint.MatchString(host) {
		return host
	}
	return ""
}

// tenancy warns of rules that take in what anybody can put there: a way out to an
// account of the attacker's own.
func (v *validator) tenancy(r rule.Rule) {
	d := r.Destination
	if r.Action == policy.Deny || r.Action == policy.Approve {
		return
	}
	switch d.Kind {
	case rule.WildcardHost:
		domain := sharedBelow(d.Host)
		if domain == "" {
			return
		}
		kind, what := finding.AnyTenant, "where anybody can have one"
		if r.Type == policy.TypeEgressAuth {
			kind, what = finding.ToAnyTenant, "where anybody can have one that the credential goes to"
		}
		fix := fmt.Sprintf("name the ones that are yours, as in \"your-name.%s\"", domain)
		v.say(kind, r.Path+".destination", fmt.Sprintf("%q takes in every name below %s, %s", "*."+d.Host, domain, what), fix)
	case rule.ExactHost:
		if tenantless(r.Paths) && (slices.Contains(byPath, d.Host) || s3Endpoint.MatchString(d.Host)) {
			v.say(finding.AnyPath, r.Path+".destination", fmt.Sprintf("%s holds everybody's content, told apart by path", d.Host),
				"write paths: with what is yours, as in [\"/your-name/**\"]")
		}
	}
}

// tenantless reports whether one of the globs leaves the first segment open,
// which is whose content a path is about.
func tenantless(globs []string) bool {
	return globs == nil || slices.ContainsFunc(globs, func(g string) bool {
		return strings.HasPrefix(strings.TrimPrefix(g, "/"), "*")
	})
}
