package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// build remembers what a file's build is until the file is another.
type build struct {
	mu   sync.Mutex
	seen os.FileInfo
	name string
}

// Build names the build of gVisor: what it calls its version, and the digest of
// the program, since two builds of one version need not read each other's
// checkpoints.
func (r *Runtime) Build(ctx context.Context) (string, error) {
	b := &r.build
	b.mu.Lock()
	defer b.mu.Unlock()
	info, err := os.Stat(r.layout.Runsc)
	if err != nil {
		return "", fmt.Errorf("finding gVisor's build: %w", err)
	}
	if b.seen != nil && os.SameFile(b.seen, info) && b.seen.Size() == info.Size() && b.seen.ModTime().Equal(info.ModTime()) {
		return b.name, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, r.layout.Runsc, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("finding gVisor's build: %w", err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	version := strings.TrimSpace(strings.TrimPrefix(line, "runsc version"))
	if version == "" {
		return "", errors.New("finding gVisor's build: runsc has no version")
	}
	f, err := os.Open(r.layout.Runsc)
	if err != nil {
		return "", fmt.Errorf("finding gVisor's build: %w", err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("finding gVisor's build: %w", err)
	}
	b.seen, b.name = info, version+" "+hex.EncodeToString(sum.Sum(nil)[:8])
	return b.name, nil
}
