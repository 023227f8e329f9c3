package docker

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/moby/moby/client/pkg/versions"

	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
	"sallyport/sandbox/docker/apierror"
	"sallyport/sandbox/docker/image"
)

// agentPath is where the agent is inside every container.
const agentPath = "/.sallyport/agent"

// capabilities are what package managers, servers and their installation
// scripts need of a root inside. Of the engine's default set these are missing:
// NET_RAW (no packets of one's own making), MKNOD (no devices), SETPCAP.
var capabilities = []string{
	"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL",
	"NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETUID", "SYS_CHROOT",
}

// options is the request that makes the container.
func (r *Runtime) options(c sandbox.Container, img image.Config, mac network.HardwareAddr, env map[string]string) client.ContainerCreateOptions {
	no := false
	pids := cmp.Or(c.Spec.Pids, r.cfg.Pids)
	return client.ContainerCreateOptions{
		Name: containerName(c.ID),
		Config: &container.Config{
			Hostname:    hostname(c.Name),
			Image:       img.ID,
			User:        "0:0", // of the agent; commands have the image's
			Entrypoint:  []string{agentPath},
			Cmd:         agentArgs(img.User),
			WorkingDir:  c.Spec.Workdir,
			Env:         environment(env, c),
			Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
			StopSignal:  "SIGTERM",
			Labels: map[string]string{
				labelID:    c.ID,
				labelName:  c.Name,
				labelUser:  img.User,
				labelLayer: c.Layer,
			},
		},
		HostConfig: &container.HostConfig{
			Runtime:       cmp.Or(c.Spec.Runtime, r.cfg.Runtime),
			NetworkMode:   container.NetworkMode(r.cfg.Bridge),
			RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
			// The agent says nothing, and what hostile code writes to its
			// output must not fill the host's disk.
			LogConfig:   container.LogConfig{Type: "none"},
			CapDrop:     []string{"ALL"},
			CapAdd:      capabilities,
			SecurityOpt: []string{"no-new-privileges"},
			Init:        &no,
			Mounts:      r.mounts(c),
			Resources: container.Resources{
				NanoCPUs:   int64(c.Spec.CPUs * 1e9),
				Memory:     c.Spec.Memory,
				MemorySwap: c.Spec.Memory, // the sum: no swap
				PidsLimit:  &pids,
				// A core is written outside of the sandbox, by the host's kernel or by
				// a program of the host's, which 1 keeps off and 0 does not (core(5)).
				Ulimits: []*container.Ulimit{{Name: "core", Soft: 1, Hard: 1}},
			},
		},
		NetworkingConfig: &network.NetworkingConfig{
			EndpointsConfig: map[string]*network.EndpointSettings{
				r.cfg.Bridge: {
					IPAMConfig: &network.EndpointIPAMConfig{IPv4Address: c.Address.Addr()},
					MacAddress: mac,
				},
			},
		},
	}
}

// agentArgs tells the agent whom commands run as by default.
func agentArgs(user string) []string {
	if user == "" {
		return nil
	}
	return []string{"user", user}
}

// environment joins what we and the manager set; the later wins. The spec's
// comes with each command.
func environment(trust map[string]string, c sandbox.Container) []string {
	env := maps.Clone(trust)
	if env == nil {
		env = map[string]string{}
	}
	for _, kv := range c.Env {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	list := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		list = append(list, k+"="+env[k])
	}
	return list
}

// mounts lists the agent, the key that it knows the host by, the resolver's address (the engine's own name server
// does not work under gVisor) and the sandbox's folders.
func (r *Runtime) mounts(c sandbox.Container) []mount.Mount {
	list := []mount.Mount{
		{Type: mount.TypeBind, Source: r.cfg.Agent, Target: agentPath, ReadOnly: true},
		{Type: mount.TypeBind, Source: r.hostKey(), Target: wire.KeyFile, ReadOnly: true},
		{Type: mount.TypeBind, Source: r.resolvConf(), Target: "/etc/resolv.conf", ReadOnly: true},
	}
	for _, m := range c.Mounts {
		list = append(list, mount.Mount{Type: mount.TypeBind, Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
	}
	return list
}

// hardwareAddr is the container's MAC address. An engine before API 1.44 cannot
// be told one for a network of ours but always makes it from the IPv4 address;
// another one is refused there, rather than having the datapath drop all packets.
func (r *Runtime) hardwareAddr(ctx context.Context, c sandbox.Container) (network.HardwareAddr, error) {
	if !c.Address.Addr().Is4() {
		return nil, fmt.Errorf("%w: sandbox address %s is not IPv4", sandbox.ErrBadSpec, c.Address)
	}
	want, err := net.ParseMAC(c.MAC)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", sandbox.ErrBadSpec, err)
	}
	if _, err := r.client.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		return nil, apierror.Map(err)
	}
	if versions.LessThan(r.client.ClientVersion(), "1.44") {
		ip := c.Address.Addr().As4()
		if made := append(net.HardwareAddr{0x02, 0x42}, ip[:]...); made.String() != want.String() {
			return nil, fmt.Errorf("%w: this engine (API %s) can only give %s the MAC address %s, not %s",
				sandbox.ErrBadSpec, r.client.ClientVersion(), c.Address.Addr(), made, want)
		}
	}
	return network.HardwareAddr(want), nil
}
