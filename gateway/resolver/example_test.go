package resolver_test

import (
	"fmt"
	"os"

	"sallyport/gateway/resolver"
)

func ExampleNameTable() {
	dir, err := os.MkdirTemp("", "names")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	table, err := resolver.OpenNameTable(dir, resolver.NameTableOptions{})
	if err != nil {
		panic(err)
	}
	addr, err := table.Assign("demo", "api.example.com")
	if err != nil {
		panic(err)
	}
	name, _ := table.Name("demo", addr)
	fmt.Println(addr, name)
	_, known := table.Name("other", addr)
	fmt.Println(known)
	// Output:
	// 198.18.0.16 api.example.com
	// false
}
