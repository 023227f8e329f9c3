// Command template makes the sets of images that the engines of tests share (see
// env.Templates): base, and trust, which has the images for tests of certificates too.
//
//	template FOLDER
//
// It runs in the root of the repository, as root, after `make setup`.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

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
	p, err := env.Build("", ".")
	if err != nil {
		return err
	}
	defer p.Remove()
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	trust := map[string]string{}
	for _, name := range []string{"runtimes", "browsers"} {
		if trust["sallyport/"+name+":1"], err = filepath.EvalSymlinks("bin/" + name + ".tar"); err != nil {
			return err
		}
	}
	t := env.Templates(to)
	return errors.Join(t.MakeTemplate(p, "base", nil), t.MakeTemplate(p, "trust", trust))
}
