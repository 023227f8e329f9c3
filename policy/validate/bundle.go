package validate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sallyport/internal/hostname"
	"sallyport/policy"
	"sallyport/policy/finding"
)

// bundle checks policy.bundle.
func (v *validator) bundle(b *policy.BundleSource) {
	const at = "policy.bundle"
	if b == nil {
		return
	}
	switch {
	case b.File == "" && b.URL == "":
		v.fail(at, "says nowhere to take the bundle from", "write file or url")
		return
	case b.File != "" && b.URL != "":
		v.fail(at, "has both file and url", "write one of them")
		return
	}
	if b.Algorithm != "" && !slices.Contains(policy.BundleAlgorithms, b.Algorithm) {
		v.fail(at+".algorithm", fmt.Sprintf("%q is not one of %s", b.Algorithm, strings.Join(policy.BundleAlgorithms, ", ")), "write the one that `opa sign --signing-alg` was given")
	}
	if b.Key == "" && (b.Older || b.KeyID != "" || b.Scope != "" || b.Algorithm != "") {
		v.fail(at+".key", "is missing, so that nothing is verified", "write the PEM file of the public key")
	}
	if b.File != "" {
		if b.Key == "" {
			v.say(finding.UnsignedBundle, at+".key", "is missing: whoever can write the file writes policy", "sign the bundle with `opa sign` and write the PEM file of the public key")
		}
		if b.AuthRef != "" || b.Roots != "" || b.Poll != 0 || b.StaleAfter != 0 {
			v.fail(at, "authRef, roots, poll and staleAfter are for a url", "remove them")
		}
		return
	}
	u, err := hostname.ParseURL(b.URL)
	switch {
	case err != nil && strings.Contains(b.URL, "@"):
		v.fail(at+".url", "has a user or password in it", "write it without, and name a credential in authRef")
	case err != nil:
		v.fail(at+".url", fmt.Sprintf("%q is %v", b.URL, err), "write one as https://bundles.example.com/egress.tar.gz")
	case u.Scheme == "http":
		if addr, _ := netip.ParseAddr(u.Hostname()); !addr.IsLoopback() && u.Hostname() != "localhost" {
			v.fail(at+".url", "is asked in the clear", "write https://"+u.Host+u.Path)
		}
	}
	if b.Key == "" {
		v.fail(at+".key", "is missing: a bundle from a server is taken with a signature only", "sign it with `opa sign` and write the PEM file of the public key")
	}
	if b.AuthRef != "" && v.find(b.AuthRef) < 0 {
		v.fail(at+".authRef", fmt.Sprintf("%q is not among the credentials", b.AuthRef), "add it to credentials")
	}
	poll := b.Poll.Or(policy.DefaultPoll)
	if poll < time.Second || poll > 24*time.Hour {
		v.fail(at+".poll", fmt.Sprintf("%v is not from 1s to 24h", poll), "write a time as 1m")
	}
	if stale := b.StaleAfter.Or(policy.DefaultStaleAfter); stale < poll {
		v.fail(at+".staleAfter", fmt.Sprintf("%v is less than the time between two checks, %v", stale, poll), "write a longer time")
	}
}
