package memory_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"sallyport/internal/terminal"
	"sallyport/memory"
)

func Example() {
	sandbox, err := os.MkdirTemp("", "sandbox")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(sandbox)

	dir, err := memory.Ensure(sandbox) // what the sandbox sees as /memory
	if err != nil {
		log.Fatal(err)
	}
	// The sandbox writes a name that would clear an operator's terminal.
	if err := os.WriteFile(filepath.Join(dir, "plan\x1b[2J"), []byte("1. ask"), 0o600); err != nil {
		log.Fatal(err)
	}
	entries, err := list(dir)
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range entries {
		fmt.Println(e.Kind, e.Size, terminal.Escape(e.Path))
	}
	// Output:
	// file 11 memories.md
	// file 6 plan\x1b[2J
}
