package e2e

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// hostMux routes by the Host header.
type hostMux map[string]http.Handler

func (m hostMux) orElse(rest http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h, ok := m[r.Host]; ok {
			h.ServeHTTP(w, r)
			return
		}
		rest.ServeHTTP(w, r)
	})
}

// seedRepository makes root/repo.git with one commit.
func seedRepository(t testing.TB, root string) {
	t.Helper()
	tree := filepath.Join(t.TempDir(), "tree")
	for _, args := range [][]string{
		{"init", "-q", "-b", "main", tree},
		{"-C", tree, "-c", "user.name=t", "-c", "user.email=t@example.test", "commit", "-q", "--allow-empty", "-m", "first"},
		{"clone", "-q", "--bare", tree, filepath.Join(root, "repo.git")},
	} {
		c := exec.Command("git", args...)
		c.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
	}
}
