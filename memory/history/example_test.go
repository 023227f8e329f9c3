package history_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"sallyport/memory"
	"sallyport/memory/history"
)

func Example() {
	ctx := context.Background()
	sandbox, err := os.MkdirTemp("", "sandbox")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(sandbox)
	dir, err := memory.Ensure(sandbox)
	if err != nil {
		log.Fatal(err)
	}
	f, err := memory.Open(dir)
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	h, err := history.Open(ctx, filepath.Join(sandbox, "history.db"), history.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer h.Close()

	record := func(text string, c history.Cause) {
		if err := os.WriteFile(filepath.Join(dir, "memories.md"), []byte(text), 0o666); err != nil {
			log.Fatal(err)
		}
		if _, err := h.Record(ctx, f, c); err != nil {
			log.Fatal(err)
		}
	}
	record("Ask first.\n", history.Cause{Operation: memory.ByCommand, Command: "sh"})
	record("Never ask.\n", history.Cause{Operation: memory.ByCommand, Command: "curl", Contacted: []string{"evil.example"}})

	first, err := h.Since(ctx, "evil.example")
	if err != nil {
		log.Fatal(err)
	}
	diffs, err := h.Diff(ctx, first-1, first, "")
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range diffs {
		fmt.Print(d.Text)
	}
	if _, err := h.Rollback(ctx, f, history.Target{To: first - 1}, history.Cause{Caller: "operator"}); err != nil {
		log.Fatal(err)
	}
	text, err := f.Read("memories.md")
	fmt.Printf("%s%v\n", text, err)
	fmt.Println(h.Verify(ctx))
	// Output:
	// --- memories.md
	// +++ memories.md
	// @@ -1 +1 @@
	// -Ask first.
	// +Never ask.
	// Ask first.
	// <nil>
	// <nil>
}
