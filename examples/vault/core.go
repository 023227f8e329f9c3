package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"

	"github.com/hashicorp/go-hclog"
	jwt "github.com/hashicorp/vault-plugin-auth-jwt"
	kubernetes "github.com/hashicorp/vault-plugin-auth-kubernetes"
	redis "github.com/hashicorp/vault-plugin-database-redis"
	kv "github.com/hashicorp/vault-plugin-secrets-kv"
	"github.com/hashicorp/vault/builtin/credential/approle"
	"github.com/hashicorp/vault/builtin/credential/cert"
	"github.com/hashicorp/vault/builtin/logical/aws"
	"github.com/hashicorp/vault/builtin/logical/database"
	"github.com/hashicorp/vault/builtin/logical/pki"
	"github.com/hashicorp/vault/builtin/logical/ssh"
	"github.com/hashicorp/vault/helper/namespace"
	vaulthttp "github.com/hashicorp/vault/http"
	"github.com/hashicorp/vault/internalshared/configutil"
	"github.com/hashicorp/vault/plugins/database/postgresql"
	"github.com/hashicorp/vault/sdk/helper/consts"
	"github.com/hashicorp/vault/sdk/logical"
	"github.com/hashicorp/vault/sdk/physical"
	"github.com/hashicorp/vault/sdk/physical/file"
	"github.com/hashicorp/vault/sdk/physical/inmem"
	"github.com/hashicorp/vault/vault"
)

// policy is what a gateway needs: to read its secrets, and nothing else.
const policy = `path "secret/data/*" { capabilities = ["read"] }`

var (
	engines = map[string]logical.Factory{
		"kv": kv.Factory, "database": database.Factory, "aws": aws.Factory, "ssh": ssh.Factory, "pki": pki.Factory,
	}
	logins = map[string]logical.Factory{
		"approle": approle.Factory, "cert": cert.Factory, "jwt": jwt.Factory, "kubernetes": kubernetes.Factory,
	}
	databases = map[string]func() (any, error){
		"postgresql-database-plugin": postgresql.New, "redis-database-plugin": redis.New,
	}
)

// builtins tells the core's plugin catalog what is compiled in.
type builtins struct{}

func (b builtins) Contains(name string, t consts.PluginType) bool {
	return slices.Contains(b.Keys(t), name)
}

func (b builtins) Get(name string, t consts.PluginType) (func() (any, error), bool) {
	if open, ok := databases[name]; ok && t == consts.PluginTypeDatabase {
		return open, true
	}
	return func() (any, error) { return nil, nil }, b.Contains(name, t)
}

func (builtins) Keys(t consts.PluginType) []string {
	switch t {
	case consts.PluginTypeSecrets:
		return slices.Collect(maps.Keys(engines))
	case consts.PluginTypeCredential:
		return slices.Collect(maps.Keys(logins))
	case consts.PluginTypeDatabase:
		return slices.Collect(maps.Keys(databases))
	}
	return nil
}

func (b builtins) DeprecationStatus(name string, t consts.PluginType) (consts.DeprecationStatus, bool) {
	return consts.Supported, b.Contains(name, t)
}

func (builtins) IsBuiltinEntPlugin(string, consts.PluginType) bool { return false }

// start returns a core that is initialised and unsealed, with its one unseal key and its
// root token. It keeps everything in the folder dir, or in memory where there is none.
func start(dir string) (core *vault.Core, out ready, err error) {
	log := hclog.New(&hclog.LoggerOptions{Name: "vault", Level: hclog.Warn})
	var store physical.Backend
	if dir == "" {
		store, err = inmem.NewInmem(nil, log)
	} else {
		store, err = file.NewFileBackend(map[string]string{"path": filepath.Join(dir, "data")}, log)
	}
	if err != nil {
		return nil, out, err
	}
	core, err = vault.NewCore(&vault.CoreConfig{
		Physical:           store,
		LogicalBackends:    engines,
		CredentialBackends: logins,
		BuiltinRegistry:    builtins{},
		DisableMlock:       true,
		Logger:             log,
	})
	if err != nil {
		return nil, out, fmt.Errorf("making the core: %w", err)
	}
	before, err := os.ReadFile(filepath.Join(dir, "ready.json"))
	if dir != "" && err == nil {
		if err := json.Unmarshal(before, &out); err != nil {
			return nil, out, err
		}
		key, err := hex.DecodeString(out.UnsealKey)
		if err != nil {
			return nil, out, err
		}
		return core, out, unseal(core, key)
	}
	one := &vault.SealConfig{SecretShares: 1, SecretThreshold: 1, StoredShares: 1}
	init, err := core.Initialize(context.Background(), &vault.InitParams{BarrierConfig: one, RecoveryConfig: one})
	if err != nil {
		return nil, out, fmt.Errorf("initialising: %w", err)
	}
	out.UnsealKey, out.RootToken = hex.EncodeToString(init.SecretShares[0]), init.RootToken
	return core, out, unseal(core, init.SecretShares[0])
}

func unseal(core *vault.Core, key []byte) error {
	if ok, err := core.Unseal(key); err != nil || !ok {
		return fmt.Errorf("unsealing: %v, %w", ok, err)
	}
	return nil
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
