// Command template makes the folder of images that the engines of tests share
// (see env.Template).
//
//	template FOLDER
//
// It runs in the root of the repository, as root, after `make setup`.
package main

import (
	"errors"
	"fmt"
	"os"

	"sallyport/internal/test/env"
	"sallyport/internal/test/testnet"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "template:", err)
		os.Exit(1)
	}
}

func run(to string) error {
	if err := testnet.Isolate(); err != nil {
		return err
	}
	p, err := env.Build(".", nil)
	if err != nil {
		return err
	}
	return errors.Join(env.MakeTemplate(p, to), p.Remove())
}
