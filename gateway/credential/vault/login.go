package vault

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/vault/api"

	"sallyport/gateway/credential"
	"sallyport/internal/config"
	"sallyport/internal/secretfile"
	"sallyport/policy"
)

// maxToken is the size in bytes of the largest file with a token or secret ID.
const maxToken = 64 << 10

// newAuth returns the one way to log in that is configured.
func newAuth(v *Client, c config.VaultAuth, log *slog.Logger) (*session, error) {
	if ways := c.Ways(); len(ways) != 1 {
		return nil, errors.New("vault.auth: set exactly one of tokenFile, appRole, kubernetes, jwt and certificate")
	}
	file := func(key, path string) *secretFile {
		return &secretFile{client: v, key: "vault.auth." + key, path: path, wrapped: c.Wrapped}
	}
	if c.TokenFile != "" {
		return newSession(v, &tokenFile{client: v, file: file("tokenFile", c.TokenFile)}, log), nil
	}
	m := &mountLogin{client: v}
	switch {
	case c.AppRole != nil:
		if c.AppRole.RoleID == "" || c.AppRole.SecretIDFile == "" {
			return nil, errors.New("vault.auth.appRole: set both roleID and secretIDFile")
		}
		m.what, m.key, m.mount = "AppRole", "vault.auth.appRole", cmp.Or(c.AppRole.Mount, "approle")
		m.remedy = "and write a new secret ID to " + c.AppRole.SecretIDFile + " (they can be limited in uses and time)"
		secret := file("appRole.secretIDFile", c.AppRole.SecretIDFile)
		m.data = func(ctx context.Context) (map[string]any, error) {
			id, err := secret.word(ctx)
			return map[string]any{"role_id": c.AppRole.RoleID, "secret_id": id}, err
		}
	case c.Kubernetes != nil:
		m.jwt("Kubernetes", "kubernetes", c.Kubernetes, &secretFile{client: v, key: "vault.auth.kubernetes.tokenFile", path: c.Kubernetes.TokenFile, open: true})
	case c.JWT != nil:
		m.jwt("JWT", "jwt", c.JWT, file("jwt.tokenFile", c.JWT.TokenFile))
	default:
		m.what, m.key, m.mount = "a certificate", "vault.auth.certificate", cmp.Or(c.Certificate.Mount, "cert")
		m.remedy = "and that Vault trusts the authority of " + c.Certificate.Certificate
		m.data = func(context.Context) (map[string]any, error) {
			if c.Certificate.Role == "" {
				return map[string]any{}, nil
			}
			return map[string]any{"name": c.Certificate.Role}, nil
		}
		v.transport.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			key, err := secretfile.Read(c.Certificate.Key, maxToken)
			if err != nil {
				return nil, fmt.Errorf("vault.auth.certificate.key: %w", err)
			}
			chain, err := os.ReadFile(c.Certificate.Certificate)
			if err != nil {
				return nil, fmt.Errorf("vault.auth.certificate.certificate: %w", err)
			}
			pair, err := tls.X509KeyPair(chain, key)
			if err != nil {
				return nil, fmt.Errorf("vault.auth.certificate: %w", err)
			}
			return &pair, nil
		}
	}
	if m.mount = strings.Trim(m.mount, "/"); !policy.VaultPath(m.mount) {
		return nil, fmt.Errorf("%s.mount: %q is not a mount's path", m.key, m.mount)
	}
	return newSession(v, m, log), nil
}

func (m *mountLogin) jwt(what, key string, c *config.VaultRole, token *secretFile) {
	m.what, m.key, m.mount = what, "vault.auth."+key, cmp.Or(c.Mount, key)
	m.remedy = "and that the role " + c.Role + " takes the token in " + c.TokenFile
	m.data = func(ctx context.Context) (map[string]any, error) {
		jwt, err := token.word(ctx)
		return map[string]any{"role": c.Role, "jwt": jwt}, err
	}
}

// mountLogin logs in at a mount of one of Vault's auth methods.
type mountLogin struct {
	client *Client
	what   string // AppRole
	key    string // of the configuration
	mount  string
	remedy string // for a login that is refused
	data   func(context.Context) (map[string]any, error)
}

func (m *mountLogin) replaced(context.Context, string) bool { return false }

func (m *mountLogin) login(ctx context.Context) (*api.SecretAuth, error) {
	data, err := m.data(ctx)
	if err != nil {
		return nil, err
	}
	client, err := m.client.with("")
	if err != nil {
		return nil, err
	}
	got, err := client.Logical().WriteWithContext(ctx, "auth/"+m.mount+"/login", data)
	switch code := status(err); {
	case code == http.StatusBadRequest || code == http.StatusForbidden && !says(err, "sealed"):
		return nil, fmt.Errorf("%w: logging in: Vault at %s takes this login not; check %s, %s", credential.ErrRefused, m.client.address, m.key, m.remedy)
	case err != nil:
		return nil, m.client.explain("logging in with "+m.what, "", err)
	case got == nil || got.Auth == nil || got.Auth.ClientToken == "":
		return nil, fmt.Errorf("%w: logging in: Vault at %s has no %s at auth/%s; check %s.mount", credential.ErrRefused, m.client.address, m.what, m.mount, m.key)
	}
	return got.Auth, nil
}

// tokenFile logs in with the token in a file, such as Vault Agent keeps fresh. The file
// is small and calls are rare, so it is read each time.
type tokenFile struct {
	client *Client
	file   *secretFile
	given  string
}

func (f *tokenFile) replaced(ctx context.Context, _ string) bool {
	word, err := f.file.word(ctx)
	return err != nil || word != f.given
}

func (f *tokenFile) login(ctx context.Context) (*api.SecretAuth, error) {
	word, err := f.file.word(ctx)
	if err != nil {
		return nil, err
	}
	f.given = word
	auth := &api.SecretAuth{ClientToken: word}
	client, err := f.client.with(word)
	if err != nil {
		return nil, err
	}
	got, err := client.Auth().Token().LookupSelfWithContext(ctx)
	switch code := status(err); {
	case err != nil && (code == 0 || code == astray || code == http.StatusTooManyRequests || code >= 500):
		return nil, f.client.explain("asking how long our token lives", "", err)
	case err == nil: // else this token cannot ask
		if life, err := got.TokenTTL(); err == nil {
			auth.LeaseDuration = int(life / time.Second)
		}
		auth.Renewable, _ = got.TokenIsRenewable()
	}
	return auth, nil
}

// secretFile is a file that holds one token and perhaps a newline.
type secretFile struct {
	client  *Client
	key     string // of the configuration
	path    string
	open    bool // others may read it: Kubernetes writes it so
	wrapped bool // it is a wrapping token

	mu        sync.Mutex
	wrapping  string // that was unwrapped last
	unwrapped string
}

func (f *secretFile) word(ctx context.Context) (string, error) {
	text, err := f.read()
	if err != nil {
		return "", fmt.Errorf("%w: %s: %w", credential.ErrRefused, f.key, err)
	}
	word := strings.TrimSpace(string(text))
	if word == "" || strings.ContainsFunc(word, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("%w: %s: %s does not hold one token", credential.ErrRefused, f.key, f.path)
	}
	if !f.wrapped {
		return word, nil
	}
	return f.unwrap(ctx, word)
}

func (f *secretFile) read() ([]byte, error) {
	if !f.open {
		return secretfile.Read(f.path, maxToken)
	}
	file, err := os.Open(f.path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, maxToken))
}

// unwrap exchanges a wrapping token, which works once (Vault's response wrapping).
func (f *secretFile) unwrap(ctx context.Context, wrapping string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if wrapping == f.wrapping {
		return f.unwrapped, nil
	}
	client, err := f.client.with("")
	if err != nil {
		return "", err
	}
	got, err := client.Logical().UnwrapWithContext(ctx, wrapping)
	switch {
	case err != nil && status(err) == 400:
		return "", fmt.Errorf("%w: %s: the wrapping token in %s has expired or was used already; if that was not by Sallyport, somebody else has what it held: revoke that, and write a new one",
			credential.ErrRefused, f.key, f.path)
	case err != nil:
		return "", f.client.explain("unwrapping "+f.key, "", err)
	}
	var word string
	switch {
	case got == nil:
	case got.Auth != nil:
		word = got.Auth.ClientToken
	default:
		if word, _ = textOf(got.Data["secret_id"]); word == "" {
			word, _ = textOf(got.Data["token"])
		}
	}
	if word == "" {
		return "", fmt.Errorf("%w: %s: what the wrapping token in %s held is neither a token nor a secret ID", credential.ErrRefused, f.key, f.path)
	}
	f.wrapping, f.unwrapped = wrapping, word
	return word, nil
}
