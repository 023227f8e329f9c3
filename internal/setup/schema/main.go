// Command schema writes the JSON schema of sallyport.yaml, for editors. It is
// made from the structs that the file is read into and from their comments, so
// that it cannot say something else than they do: run `make generate`.
//
// A field's comment is its description; lines of it that begin with "Example: "
// hold YAML, and every field has one. A field without a comment has that of the
// last field of its name above it.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"

	"sallyport/internal/config"
)

func main() {
	out := flag.String("o", "", "file to write")
	root := flag.String("root", "../..", "the repository")
	flag.Parse()
	text, err := generate(*root)
	if err == nil {
		err = os.WriteFile(*out, text, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "schema:", err)
		os.Exit(1)
	}
}

// generate returns the schema of what the repository at root reads.
func generate(root string) ([]byte, error) {
	comments, err := readComments(root+"/policy", root+"/internal/config")
	if err != nil {
		return nil, err
	}
	w := writer{comments: comments, made: map[string]*node{}}
	top := w.structure(reflect.TypeFor[config.Config]())
	top.Schema = "http://json-schema.org/draft-07/schema#"
	top.Title, top.Description = "sallyport.yaml", "The configuration of Sallyport. An empty file is one that lets nothing out."
	top.Definitions = w.definitions
	if w.err != nil {
		return nil, w.err
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err = e.Encode(top)
	return b.Bytes(), err
}
