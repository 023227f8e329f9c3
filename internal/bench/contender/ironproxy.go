package contender

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// startIronProxy starts github.com/ironsh/iron-proxy as an explicit proxy, with a list of what is allowed
// and one header set; the line that it logs of each request goes to a file. Its
// other listeners get ports that nobody asks.
func startIronProxy(ctx context.Context, o Options) (*exec.Cmd, string, error) {
	var addresses [4]string
	for i := range addresses {
		var err error
		if addresses[i], err = vacant(); err != nil {
			return nil, "", err
		}
	}
	dir := filepath.Join(o.Dir, "iron-proxy")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, "", err
	}
	key := filepath.Join(dir, "authority.pem")
	if err := authority(o, "iron-proxy", key); err != nil {
		return nil, "", err
	}
	conf := filepath.Join(dir, "iron-proxy.yaml")
	text := strings.NewReplacer("TUNNEL", addresses[0], "HTTPS", addresses[1], "HTTP", addresses[2], "METRICS", addresses[3],
		"ROOT", filepath.Join(o.Dir, "iron-proxy.pem"), "KEY", key).Replace(ironProxyConf)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, "", err
	}
	cmd := exec.CommandContext(ctx, "iron-proxy", "-config", conf)
	// Nothing else: a proxy that it would go through comes from the environment too.
	cmd.Env = []string{"SSL_CERT_FILE=" + filepath.Join(o.Dir, "upstream.pem"), "BENCH_SECRET=" + o.Secret}
	return start(ctx, o, "iron-proxy", addresses[0], cmd)
}

const ironProxyConf = `dns: {enabled: false}
proxy:
  tunnel_listen: TUNNEL
  https_listen: HTTPS
  http_listen: HTTP
  upstream_deny_cidrs: []
tls: {ca_cert: ROOT, ca_key: KEY}
metrics: {listen: METRICS}
transforms:
- name: allowlist
  config: {domains: [localhost]}
- name: secrets
  config:
    secrets:
    - source: {type: env, var: BENCH_SECRET}
      inject: {header: Authorization, formatter: "Bearer {{ .Value }}"}
      rules: [{host: localhost}]
`
