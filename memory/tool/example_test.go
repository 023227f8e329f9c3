package tool_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"

	"sallyport/memory"
	"sallyport/memory/tool"
)

func Example() {
	dir, err := os.MkdirTemp("", "memory")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	f, err := memory.Open(dir)
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()

	for _, input := range []string{ // of tool_use blocks
		`{"command": "create", "path": "/memories/plan.md", "file_text": "- [ ] ask\n- [ ] act\n"}`,
		`{"command": "str_replace", "path": "/memories/plan.md", "old_str": "[ ] ask", "new_str": "[x] ask"}`,
		`{"command": "view", "path": "/etc/passwd"}`,
	} {
		answer := tool.Run(context.Background(), f, json.RawMessage(input))
		fmt.Printf("%t %q\n", answer.IsError, answer.Content)
	}
	// Output:
	// false "File created successfully at: /memories/plan.md"
	// false "The memory file has been edited. Here is the snippet showing the change (with line numbers):\n     1\t- [x] ask\n     2\t- [ ] act\n     3\t"
	// true "Path must start with /memories, got: /etc/passwd"
}
