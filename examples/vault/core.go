package main

import (
	"context"
	"fmt"
	"net/http"

	"github.com/hashicorp/go-hclog"
	kv "github.com/hashicorp/vault-plugin-secrets-kv"
	"github.com/hashicorp/vault/builtin/credential/approle"
	"github.com/hashicorp/vault/helper/namespace"
	vaulthttp "github.com/hashicorp/vault/http"
	"github.com/hashicorp/vault/internalshared/configutil"
	"github.com/hashicorp/vault/sdk/helper/consts"
	"github.com/hashicorp/vault/sdk/logical"
	"github.com/hashicorp/vault/sdk/physical/inmem"
	"github.com/hashicorp/vault/vault"
)

// policy is what a gateway needs: to read its secrets, and nothing else.
const policy = `path "secret/data/*" { capabilities = ["read"] }`

// builtins tells the core's plugin catalog what is compiled in.
type builtins map[string]consts.PluginType

func (b builtins) Contains(name string, t consts.PluginType) bool { return b[name] == t }

func (b builtins) Get(name string, t consts.PluginType) (func() (any, error), bool) {
	return func() (any, error) { return nil, nil }, b.Contains(name, t)
}

func (b builtins) Keys(t consts.PluginType) []string {
	var names []string
	for name, have := range b {
		if have == t {
			names = append(names, name)
		}
	}
	return names
}

func (b builtins) DeprecationStatus(name string, t consts.PluginType) (consts.DeprecationStatus, bool) {
	return consts.Supported, b.Contains(name, t)
}

func (b builtins) IsBuiltinEntPlugin(string, consts.PluginType) bool { return false }

// start returns a core that is initialised and unsealed, with its one unseal
// key and its root token.
func start() (core *vault.Core, key []byte, root string, err error) {
	log := hclog.New(&hclog.LoggerOptions{Name: "vault", Level: hclog.Warn})
	store, err := inmem.NewInmem(nil, log)
	if err != nil {
		return nil, nil, "", err
	}
	core, err = vault.NewCore(&vault.CoreConfig{
		Physical:           store,
		LogicalBackends:    map[string]logical.Factory{"kv": kv.Factory},
		CredentialBackends: map[string]logical.Factory{"approle": approle.Factory},
		BuiltinRegistry:    builtins{"kv": consts.PluginTypeSecrets, "approle": consts.PluginTypeCredential},
		DisableMlock:       true,
		Logger:             log,
	})
	if err != nil {
		return nil, nil, "", fmt.Errorf("making the core: %w", err)
	}
	one := &vault.SealConfig{SecretShares: 1, SecretThreshold: 1, StoredShares: 1}
	init, err := core.Initialize(context.Background(), &vault.InitParams{BarrierConfig: one, RecoveryConfig: one})
	if err != nil {
		return nil, nil, "", fmt.Errorf("initialising: %w", err)
	}
	key = init.SecretShares[0]
	// The core wipes the slice that it is given.
	if ok, err := core.Unseal(append([]byte(nil), key...)); err != nil || !ok {
		return nil, nil, "", fmt.Errorf("unsealing: %v, %w", ok, err)
	}
	return core, key, init.RootToken, nil
}

// provision mounts KV version 2 at secret/ and makes the AppRole sallyport.
func provision(ctx context.Context, core *vault.Core, root string) (roleID, secretID string, err error) {
	steps := []struct {
		path string
		data map[string]any
	}{
		{"sys/mounts/secret", map[string]any{"type": "kv", "options": map[string]any{"version": "2"}}},
		{"sys/policies/acl/sallyport", map[string]any{"policy": policy}},
		{"sys/auth/approle", map[string]any{"type": "approle"}},
		{"auth/approle/role/sallyport", map[string]any{"token_policies": "sallyport", "token_ttl": "1h", "token_max_ttl": "24h"}},
	}
	for _, s := range steps {
		if _, err := write(ctx, core, root, s.path, s.data); err != nil {
			return "", "", err
		}
	}
	resp, err := handle(ctx, core, root, logical.ReadOperation, "auth/approle/role/sallyport/role-id", nil)
	if err != nil {
		return "", "", err
	}
	roleID, _ = resp.Data["role_id"].(string)
	resp, err = write(ctx, core, root, "auth/approle/role/sallyport/secret-id", map[string]any{})
	if err != nil {
		return "", "", err
	}
	secretID, _ = resp.Data["secret_id"].(string)
	return roleID, secretID, nil
}

func write(ctx context.Context, core *vault.Core, token, path string, data map[string]any) (*logical.Response, error) {
	return handle(ctx, core, token, logical.UpdateOperation, path, data)
}

func handle(ctx context.Context, core *vault.Core, token string, op logical.Operation, path string, data map[string]any) (*logical.Response, error) {
	resp, err := core.HandleRequest(namespace.RootContext(ctx), &logical.Request{
		Operation: op, Path: path, Data: data, ClientToken: token,
	})
	if err == nil && resp != nil {
		err = resp.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", op, path, err)
	}
	return resp, nil
}

func handler(core *vault.Core) http.Handler {
	return vaulthttp.Handler.Handler(&vault.HandlerProperties{
		Core:           core,
		ListenerConfig: &configutil.Listener{},
	})
}
