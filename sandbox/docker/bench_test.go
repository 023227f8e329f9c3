package docker

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"sallyport/internal/test/must"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/agent/wire"
)

// BenchmarkCommand runs true in a gVisor sandbox: by its agent, by `docker exec`
// and, for what of it is neither's, by a shell inside that only forks and execs.
// p50-ms is what one takes half of the time.
func BenchmarkCommand(b *testing.B) {
	if shared == nil {
		must.Lack(b, "needs root and an engine")
	}
	c := shared.container(&testing.T{}, "")
	c.Name = "bench"
	ctx := context.Background()
	if _, err := shared.runtime.Create(ctx, c); err != nil {
		b.Fatal(err)
	}
	defer shared.runtime.Remove(ctx, c.ID)
	if _, err := shared.runtime.Start(ctx, c.ID); err != nil {
		b.Fatal(err)
	}
	agent := channel.New(c.Address.Addr(), channel.Options{Key: shared.key})
	defer agent.Close()
	run := func(args ...string) error {
		end, err := agent.Run(ctx, wire.Command{ID: uuid.NewString(), Args: args}, wire.Streams{})
		if err == nil && end.Code != 0 {
			err = fmt.Errorf("exit code %d", end.Code)
		}
		return err
	}
	var status strings.Builder
	if _, err := agent.Run(ctx, wire.Command{ID: uuid.NewString(), Args: []string{"grep", "VmRSS", "/proc/1/status"}}, wire.Streams{Stdout: &status}); err != nil {
		b.Fatal(err)
	}
	b.Logf("the agent's memory: %s", status.String())
	for _, way := range []struct {
		name string
		do   func() error
	}{
		{"hello", func() error { return agent.JSON(ctx, "GET", "/hello", nil, nil) }},
		{"agent", func() error { return run("true") }},
		{"inside-100", func() error { return run("sh", "-c", "for i in $(seq 100); do /bin/true; done") }},
		{"docker-exec", func() error {
			return exec.Command("docker", "-H", "unix://"+filepath.Join(shared.cfg.RunDir, "engine/docker.sock"), "exec", containerName(c.ID), "true").Run()
		}},
	} {
		b.Run(way.name, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				begin := time.Now()
				must.OK(b, way.do())
				took = append(took, time.Since(begin))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
		})
	}
}
