package docker

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"sallyport/internal/test/must"
)

// TestHandshakeReplaced: a handshake that is replaced is there at each moment, since a start
// shim that finds none starts its container without the memory.
func TestHandshakeReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "container")
	var looks sync.WaitGroup
	over := make(chan struct{})
	for i := range 500 {
		n, err := newHandshake(path)
		must.OK(t, err)
		n.close()
		if i > 0 {
			continue
		}
		looks.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				if _, err := os.Lstat(path); err != nil {
					t.Errorf("a shim finds: %v", err)
					return
				}
			}
		})
	}
	close(over)
	looks.Wait()
	if err := removeHandshake(path); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(path + "*"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
