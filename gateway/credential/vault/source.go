package vault

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/vault/api"

	"sallyport/gateway/credential"
	"sallyport/policy"
)

// ttl is how long a version is used before Vault is asked for a newer one. It
// is also how long a secret outlives its removal from Vault.
const ttl = 30 * time.Second

// Source is one secret of a KV mount, of version 2 or 1, or one field of it. In version 1
// secrets have no version.
type Source struct {
	client *Client
	path   string
	field  string
}

// Source returns a secret as a credential source. It checks the form of the
// path and does not talk to Vault.
func (v *Client) Source(s policy.VaultSource) (*Source, error) {
	path := s.Path
	mount, name, _ := strings.Cut(path, "/")
	switch {
	case strings.HasPrefix(path, "/") || strings.HasPrefix(path, "v1/"):
		return nil, fmt.Errorf("vault path %q: leave out /v1/ and begin with the mount: secret/data/openai", path)
	case mount == "" || name == "" || !policy.VaultPath(path):
		return nil, fmt.Errorf("vault path %q: write names, with / between them: the mount, data in KV version 2, and the secret's name: secret/data/openai", path)
	}
	return &Source{client: v, path: path, field: s.Field}, nil
}

// TTL makes the Broker keep what was read for 30 s, unless the configuration says otherwise.
// Vault has no news of new versions but in its Enterprise edition, and asking it for each
// request costs a round trip and two records.
func (s *Source) TTL() time.Duration { return ttl }

// Read returns the newest version of the secret.
func (s *Source) Read(ctx context.Context) (credential.Material, error) {
	var got *api.Secret
	err := s.client.do(ctx, "reading "+s.path, "the capability read on that path", func(c *api.Client) (err error) {
		got, err = c.Logical().ReadWithContext(ctx, s.path)
		return err
	})
	if err != nil {
		return credential.Material{}, err
	}
	if got == nil || len(got.Data) == 0 {
		return credential.Material{}, fmt.Errorf("%w: Vault has nothing at %s; write it there: vault kv put, or correct the path (in KV version 2 it has data after the mount)", credential.ErrNoSecret, s.path)
	}
	m := credential.Material{Fields: make(map[string]credential.Secret), Accessor: got.RequestID}
	data := got.Data
	if metadata, isKV2 := got.Data["metadata"].(map[string]any); isKV2 && strings.Contains(s.path, "/data/") {
		if data, _ = got.Data["data"].(map[string]any); data == nil {
			return credential.Material{}, fmt.Errorf("%w: the newest version at %s was deleted; write a new one, or: vault kv undelete", credential.ErrNoSecret, s.path)
		}
		m.Version = versionOf(metadata)
		// A version that deletes itself (delete_version_after) says when.
		if text, _ := metadata["deletion_time"].(string); text != "" {
			if m.Expires, err = time.Parse(time.RFC3339Nano, text); err != nil {
				return credential.Material{}, fmt.Errorf("%w: the deletion time of %s is not a time", credential.ErrUnavailable, s.path)
			}
		}
	}
	if s.field != "" {
		value, ok := data[s.field]
		if !ok {
			return credential.Material{}, fmt.Errorf("%w: the secret at %s has no field %q; add it to the secret, or correct field in the credential's source",
				credential.ErrNoSecret, s.path, s.field)
		}
		data = map[string]any{s.field: value}
	}
	for name, value := range data {
		text, err := textOf(value)
		if err != nil {
			if s.field == "" {
				continue // a template that names it finds no such field
			}
			return credential.Material{}, fmt.Errorf("%w: field %q of the secret at %s %w", credential.ErrNoSecret, name, s.path, err)
		}
		m.Fields[name] = credential.NewSecret(text)
	}
	return m, nil
}

func versionOf(metadata map[string]any) string {
	text, _ := textOf(metadata["version"])
	return text
}

var errNotText = errors.New("is not text or a number")

func textOf(value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case json.Number:
		return v.String(), nil
	case bool:
		return strconv.FormatBool(v), nil
	}
	return "", errNotText
}
