package vault

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/vault/api"

	"sallyport/gateway/credential"
	"sallyport/internal/config"
	"sallyport/policy"
)

// appRole logs in with a role ID and a secret ID and keeps the token: renewed
// when two thirds of its life are over, replaced by a new login when that fails
// or Vault refuses it. All of it happens when a read needs it; an idle Client
// does nothing.
type appRole struct {
	client *Client
	mount  string
	role   string
	file   string
	log    *slog.Logger

	turn    chan struct{} // held by who reads or changes what follows
	current string
	renewAt time.Time // zero: the token does not expire
	expires time.Time
	renews  bool
}

func newAppRole(v *Client, c config.Vault, log *slog.Logger) (*appRole, error) {
	r := c.Auth.AppRole
	mount := strings.Trim(r.Mount, "/")
	if mount == "" {
		mount = "approle"
	}
	if !policy.VaultPath(mount) {
		return nil, fmt.Errorf("vault.auth.appRole.mount: %q is not a mount's path", r.Mount)
	}
	if r.RoleID == "" || r.SecretIDFile == "" {
		return nil, errors.New("vault.auth.appRole: set both roleID and secretIDFile")
	}
	return &appRole{client: v, mount: mount, role: r.RoleID, file: r.SecretIDFile, log: log, turn: make(chan struct{}, 1)}, nil
}

func (a *appRole) token(ctx context.Context) (string, error) {
	if err := a.take(ctx); err != nil {
		return "", err
	}
	defer a.give()
	now := time.Now()
	switch {
	case a.current == "" || !a.expires.IsZero() && !now.Before(a.expires):
		return a.login(ctx)
	case a.renewAt.IsZero() || now.Before(a.renewAt):
		return a.current, nil
	}
	if a.renews {
		err := a.renew(ctx)
		if err == nil {
			return a.current, nil
		}
		a.log.Warn("the Vault token could not be renewed; logging in again", "error", err)
	}
	token, err := a.login(ctx)
	if err != nil && time.Now().Before(a.expires) {
		// The rest of the token's life is there for mending the cause.
		a.log.Warn("logging in to Vault failed; the token still lives", "error", err, "until", a.expires)
		return a.current, nil
	}
	return token, err
}

// renewed logs in again, unless another reader has done so meanwhile.
func (a *appRole) renewed(ctx context.Context, refused string) (bool, error) {
	if err := a.take(ctx); err != nil {
		return false, err
	}
	defer a.give()
	if a.current != refused {
		return true, nil
	}
	a.log.Info("Vault refused the token; logging in again")
	a.current = ""
	_, err := a.login(ctx)
	return err == nil, err
}

func (a *appRole) take(ctx context.Context) error {
	select {
	case a.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: waiting to log in to Vault: %w", credential.ErrUnavailable, ctx.Err())
	}
}

func (a *appRole) give() { <-a.turn }

func (a *appRole) login(ctx context.Context) (string, error) {
	secretID, err := readWord("vault.auth.appRole.secretIDFile", a.file)
	if err != nil {
		return "", err
	}
	client, err := a.client.with("")
	if err != nil {
		return "", err
	}
	got, err := client.Logical().WriteWithContext(ctx, "auth/"+a.mount+"/login", map[string]any{"role_id": a.role, "secret_id": secretID})
	switch code := status(err); {
	case code == http.StatusBadRequest || code == http.StatusForbidden && !says(err, "sealed"):
		return "", fmt.Errorf("%w: logging in: Vault at %s takes this role ID and secret ID not; check vault.auth.appRole, and write a new secret ID to %s (they can be limited in uses and time)",
			credential.ErrRefused, a.client.address, a.file)
	case err != nil:
		return "", a.client.explain("logging in with AppRole", err)
	case got == nil || got.Auth == nil || got.Auth.ClientToken == "":
		return "", fmt.Errorf("%w: logging in: Vault at %s has no AppRole at auth/%s; check vault.auth.appRole.mount", credential.ErrRefused, a.client.address, a.mount)
	}
	a.keep(got.Auth)
	return a.current, nil
}

func (a *appRole) renew(ctx context.Context) error {
	client, err := a.client.with(a.current)
	if err != nil {
		return err
	}
	got, err := client.Auth().Token().RenewSelfWithContext(ctx, 0)
	if err != nil {
		return a.client.explain("renewing our token", err)
	}
	if got == nil || got.Auth == nil {
		return fmt.Errorf("%w: Vault's answer to a renewal has no token", credential.ErrUnavailable)
	}
	// At the end of its longest life Vault renews by ever less.
	before := a.expires
	a.keep(got.Auth)
	if !a.expires.After(before) {
		return errors.New("the token has reached its longest life")
	}
	return nil
}

func (a *appRole) keep(auth *api.SecretAuth) {
	a.current, a.renews = auth.ClientToken, auth.Renewable
	a.renewAt, a.expires = time.Time{}, time.Time{}
	if life := time.Duration(auth.LeaseDuration) * time.Second; life > 0 {
		a.renewAt, a.expires = time.Now().Add(life*2/3), time.Now().Add(life)
	}
}
