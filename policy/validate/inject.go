package validate

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"time"

	"sallyport/policy"
	"sallyport/policy/finding"
)

// maxGrace bounds Credential.Grace.
const maxGrace = 24 * time.Hour

func (v *validator) credential(path string, c policy.Credential) {
	if c.Name == "" {
		v.say(finding.BadCredential, path, "has no name", "write name: and what authRef will say")
		return
	}
	if !policy.IsToken(c.Name) || len(c.Name) > 128 {
		v.say(finding.BadCredential, path+".name", fmt.Sprintf("%q is not a name", c.Name), "write up to 128 letters, digits, '-', '_' and '.'")
	}
	if _, taken := v.credentials[c.Name]; taken {
		v.say(finding.BadCredential, path+".name", fmt.Sprintf("there is another credential %q", c.Name), "give each of the two a name of its own")
	}
	v.credentials[c.Name] = false
	if grace := time.Duration(c.Grace); grace < 0 || grace > maxGrace {
		v.say(finding.BadCredential, path+".grace", fmt.Sprintf("%v is not a grace", grace), "write one from 0s to 24h")
	}
	v.cache(path+".cache", c)
	v.binding(path, c)
	for i, field := range c.AllowShort {
		if !policy.IsLabel(field) {
			v.say(finding.BadCredential, fmt.Sprintf("%s.allowShort[%d]", path, i), fmt.Sprintf("%q is not a field", field), "write the name of a field, as allowShort: [pin]")
		}
	}
	v.exchange(path+".exchange", c.Exchange)
	if x := c.Exchange; x != nil && x.OAuth2 != nil && x.OAuth2.Grant == policy.GrantRefreshToken && !storable.MatchString(c.Name) {
		v.bad(path+".name", fmt.Sprintf("%q is not a name in the embedded store, which keeps the refresh tokens that come in place of others", c.Name), "write up to 64 letters, digits, '-', '_' and '.', and begin with a letter or digit")
	}
	v.placeholder(path+".placeholder", c)
	v.source(path+".source", c.Source)
	if vault := c.Source.Vault; vault != nil {
		at := path + ".source.vault"
		switch {
		case vault.Path == "":
			v.say(finding.BadCredential, at, "has no path", "write path: secret/data/"+c.Name)
		case !strings.Contains(vault.Path, "/") || strings.HasPrefix(vault.Path, "v1/") || !policy.VaultPath(vault.Path):
			v.say(finding.BadCredential, at+".path", fmt.Sprintf("%q is not an API path of Vault's", vault.Path), "write one as secret/data/"+c.Name+", without /v1")
		case len(vault.Parameters) > 0 && !vault.Makes():
			v.say(finding.BadCredential, at+".parameters", fmt.Sprintf("are for an engine, and %q is a secret that is kept", vault.Path), "remove them")
		case c.Exchange != nil && vault.Makes():
			v.say(finding.BadCredential, path+".exchange", fmt.Sprintf("needs a secret that is the same for all sandboxes, and %q is made for each", vault.Path), "remove it, or keep the secret in a KV mount")
		}
	}
}

// maxCache bounds Credential.Cache.
const maxCache = 24 * time.Hour

func (v *validator) cache(path string, c policy.Credential) {
	if c.Cache == nil {
		return
	}
	switch d := time.Duration(*c.Cache); {
	case len(c.Source.Command) == 0 && (c.Source.Vault == nil || c.Source.Vault.Makes()):
		v.bad(path, "is for a secret that is in a KV mount of Vault or that a command prints", "remove it: a secret of another source is not kept, or as long as it lives")
	case c.Exchange != nil:
		v.bad(path, "is not for a secret with an exchange, which is read for each token", "remove it")
	case d < 0 || d > maxCache:
		v.bad(path, fmt.Sprintf("%v is not a time to keep a secret", d), "write one from 0s to 24h")
	}
}

// maxArgs and maxArg bound CredentialSource.Command, the latter in bytes.
const (
	maxArgs = 64
	maxArg  = 4096
)

// variableForm is that of variables of an environment.
var variableForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

func (v *validator) source(path string, s policy.CredentialSource) {
	var given []string
	for _, key := range []struct {
		name string
		set  bool
	}{{"vault", s.Vault != nil}, {"env", s.Env != ""}, {"file", s.File != ""}, {"command", s.Command != nil}} {
		if key.set {
			given = append(given, key.name)
		}
	}
	if len(given) > 1 {
		v.say(finding.BadCredential, path, "has "+strings.Join(given, " and "), "keep one of them")
	}
	if s.Env != "" && !variableForm.MatchString(s.Env) {
		v.say(finding.BadCredential, path+".env", fmt.Sprintf("%q is not a variable's name", s.Env), "write the name without $ and value, as OPENAI_API_KEY")
	}
	if strings.ContainsRune(s.File, 0) {
		v.say(finding.BadCredential, path+".file", "is not a path", "write one as /run/secrets/openai-api-key")
	}
	if s.Command == nil {
		return
	}
	if len(s.Command) == 0 || len(s.Command) > maxArgs || s.Command[0] == "" || slices.ContainsFunc(s.Command, func(arg string) bool { return len(arg) > maxArg || strings.ContainsRune(arg, 0) }) {
		v.say(finding.BadCredential, path+".command", "is not a program with its arguments", "write a list as [pass, show, openai-api-key]")
	}
}

// unsettable are the headers that say how a message is framed or routed.
var unsettable = []string{
	"connection", "content-length", "expect", "host", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
}

func (v *validator) inject(path string, in *policy.Inject) {
	if in == nil {
		return
	}
	if h := in.Header; h != nil {
		if !policy.IsToken(h.Name) {
			v.say(finding.BadInject, path+".header", fmt.Sprintf("%q is not the name of a header", h.Name), "write one as Authorization or X-Api-Key")
		} else if slices.Contains(unsettable, strings.ToLower(h.Name)) {
			v.say(finding.BadInject, path+".header.name", fmt.Sprintf("%s says how the request is carried, and cannot hold a credential", h.Name), "write one as Authorization or X-Api-Key")
		}
		v.template(path+".header.value", h.Value, true)
	}
	if b := in.Basic; b != nil {
		v.template(path+".basic.username", b.Username, false)
		v.template(path+".basic.password", b.Password, false)
		if !strings.Contains(b.Username+b.Password, "{{") {
			v.say(finding.SecretWritten, path+".basic", "has nothing of the secret in it", `write password: "{{ .password }}"`)
		}
	}
	if q := in.Query; q != nil {
		if q.Name == "" {
			v.say(finding.BadInject, path+".query", "has no name", "write name: and the query parameter")
		}
		v.template(path+".query.value", q.Value, true)
	}
	if c := in.Cookie; c != nil {
		if !policy.IsToken(c.Name) {
			v.say(finding.BadInject, path+".cookie", fmt.Sprintf("%q is not the name of a cookie", c.Name), "write name: and the cookie, as session")
		}
		v.template(path+".cookie.value", c.Value, true)
	}
	if c := in.ClientCertificate; c != nil {
		if c.Certificate != "" {
			v.template(path+".clientCertificate.certificate", c.Certificate, true)
		}
		if c.Key != "" {
			v.template(path+".clientCertificate.key", c.Key, true)
		}
	}
	if in.Placeholder != nil {
		v.places(path+".placeholder", in.Placeholder)
	}
	v.logins(path, in)
	if a := in.AWS; a != nil {
		for key, value := range map[string]string{"service": a.Service, "region": a.Region} {
			if strings.ContainsAny(value, "/ \t\r\n") {
				v.say(finding.BadInject, path+".aws."+key, fmt.Sprintf("%q is not one", policy.Clean(value)), "write it as it is in the name of the endpoint, as s3 or eu-central-1")
			}
		}
	}
	if h := in.HMAC; h != nil {
		v.hmac(path+".hmac", h)
	}
	if given := len(in.Kinds()); given != 1 {
		v.say(finding.BadInject, path, fmt.Sprintf("names %d kinds", given), "write exactly one of "+strings.Join(policy.InjectKinds, ", "))
	}
}

// signable are the parts of a request that an HMAC can be of.
var signable = []string{"{method}", "{host}", "{path}", "{query}", "{timestamp}", "{timestampMs}", "{bodySha256}", "{body}"}

var braced = regexp.MustCompile(`\{[A-Za-z0-9]+\}`)

func (v *validator) hmac(path string, h *policy.HMACInject) {
	v.template(path+".key", h.Key, true)
	if !slices.Contains([]string{"", policy.SHA1, policy.SHA256, policy.SHA512}, h.Algorithm) {
		v.say(finding.BadInject, path+".algorithm", fmt.Sprintf("is %q", policy.Clean(h.Algorithm)), "write sha1, sha256 or sha512")
	}
	if !slices.Contains([]string{"", policy.Hex, policy.Base64}, h.Encoding) {
		v.say(finding.BadInject, path+".encoding", fmt.Sprintf("is %q", policy.Clean(h.Encoding)), "write hex or base64")
	}
	if h.Sign == "" || strings.Contains(h.Sign, "{{") {
		v.say(finding.BadInject, path+".sign", "has no text to sign, or a field of the secret in it", `write one as "{method}\n{path}\n{timestamp}\n{bodySha256}"`)
	}
	for _, part := range braced.FindAllString(h.Sign, -1) {
		if !slices.Contains(signable, part) {
			v.say(finding.BadInject, path+".sign", policy.Clean(part)+" is no part of a request", "write one of "+strings.Join(signable, ", "))
		}
	}
	signed := false
	for name, value := range h.Headers {
		at := path + ".headers." + name
		if !policy.IsToken(name) || slices.Contains(unsettable, strings.ToLower(name)) {
			v.say(finding.BadInject, at, "is not a header that a signature can be put in", "write one as X-Signature")
		}
		v.template(at, value, false)
		if strings.Contains(value, "{body") {
			v.say(finding.BadInject, at, "has the body in it", "write {signature}, {timestamp} or a field of the secret")
		}
		signed = signed || strings.Contains(value, "{signature}")
	}
	if !signed {
		v.say(finding.BadInject, path+".headers", "has the signature nowhere", `write one as {X-Signature: "{signature}"}`)
	}
}

// template checks the template of an injection. One that uses no field is most
// likely the secret itself, written where it must not be; it is not repeated.
func (v *validator) template(path, text string, secret bool) {
	example := `"Bearer {{ .token }}"`
	if key := path[strings.LastIndexByte(path, '.')+1:]; key != "value" {
		example = fmt.Sprintf(`%s: "{{ .%s }}"`, key, key)
	}
	t, err := template.New("value").Option("missingkey=error").Parse(text)
	if err != nil {
		_, why, _ := strings.Cut(err.Error(), "value:")
		v.say(finding.BadInject, path, "is not a template: line "+why, "write one as "+example)
		return
	}
	if len(t.Templates()) > 1 || strings.Contains(text, "{{ template") {
		v.say(finding.BadInject, path, "defines templates of its own", "write one as "+example)
	}
	if secret && !strings.Contains(text, "{{") {
		v.say(finding.SecretWritten, path, "has nothing of the secret in it", "write "+example+`, and set the secret with "sallyport secret set"`)
	}
	if strings.ContainsAny(text, "\r\n\x00") {
		v.say(finding.BadInject, path, "has a line break in it", "write it on one line")
	}
}

// CheckInject says what is wrong with an injection that a team's Rego makes.
func CheckInject(in *policy.Inject) error {
	v := validator{}
	v.inject("inject", in)
	return finding.JoinErrors(v.findings)
}
