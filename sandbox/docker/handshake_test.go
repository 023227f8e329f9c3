package docker

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// TestNoteReplaced: at no moment is there no note where there was one, since a guard
// that finds none starts its container without the memory.
func TestNoteReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "container")
	if err := os.WriteFile(path+oldMarkSuffix, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var looks sync.WaitGroup
	over := make(chan struct{})
	for i := range 500 {
		n, err := newHandshake(path)
		if err != nil {
			t.Fatal(err)
		}
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
					t.Errorf("a guard finds: %v", err)
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
