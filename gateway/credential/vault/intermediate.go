package vault

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/vault/api"

	"sallyport/gateway/credential"
)

// SignIntermediate has the PKI engine at a mount sign a request of an authority, in PEM, by
// MOUNT/root/sign-intermediate: for one that has one authority below it, and is named name.
// It returns the certificate and those above it in PEM.
func (v *Client) SignIntermediate(ctx context.Context, mount, name string, request []byte, ttl time.Duration) ([]byte, error) {
	path := strings.Trim(mount, "/") + "/root/sign-intermediate"
	var answer *api.Secret
	err := v.do(ctx, "asking for "+path, "update on that path", func(c *api.Client) (err error) {
		answer, err = c.Logical().WriteWithContext(ctx, path, map[string]any{
			"csr": string(request), "common_name": name, "ttl": fmt.Sprintf("%ds", int(ttl.Seconds())), "max_path_length": 1, "format": "pem",
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	if answer == nil {
		return nil, fmt.Errorf("%w: %s answered nothing", credential.ErrUnavailable, path)
	}
	own, err := textOf(answer.Data["certificate"])
	if err != nil {
		return nil, fmt.Errorf("%s: the certificate %w", path, err)
	}
	chain := []string{strings.TrimSpace(own)}
	issuers := above(answer.Data)
	if len(issuers) == 0 {
		return nil, fmt.Errorf("%s: what is above the certificate %w", path, errNotText)
	}
	for _, c := range issuers {
		if c != chain[len(chain)-1] {
			chain = append(chain, c)
		}
	}
	return []byte(strings.Join(chain, "\n") + "\n"), nil
}
