package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"sallyport/sandbox/agent/wire"
)

// pageSize is about what an answer's JSON may take, in bytes: the host reads 4 MiB
// of it at most.
const pageSize = 1 << 20

// page is a part of a folder by name: the first names after one. Its memory does not grow
// with the folder.
func page(ctx context.Context, path, after string) (out wire.Listing, err error) {
	f, err := os.Open(path)
	if err != nil {
		return out, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return out, err
	} else if !info.IsDir() {
		return out, fmt.Errorf("%s: %w", path, syscall.ENOTDIR)
	}
	var first []string
	// cut leaves the first names, sorted.
	cut := func() {
		slices.Sort(first)
		if len(first) > wire.MaxPage {
			out.More, first = true, slices.Delete(first, wire.MaxPage, len(first))
		}
	}
	for err == nil {
		var some []string
		some, err = f.Readdirnames(256)
		for _, name := range some {
			if name > after {
				first = append(first, name)
			}
		}
		if len(first) > 2*wire.MaxPage {
			cut()
		}
		if ctx.Err() != nil {
			return out, context.Cause(ctx)
		}
	}
	if !errors.Is(err, io.EOF) {
		return out, err
	}
	cut()
	root, err := os.OpenRoot(path)
	if err != nil {
		return out, err
	}
	defer root.Close()
	out.Files = []wire.File{}
	size := 0
	for _, name := range first {
		if size > pageSize {
			out.More = true
			break
		}
		info, err := root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // since
		}
		if err != nil {
			return out, err
		}
		f := describe(name, info)
		if f.Type == wire.Link {
			f.Target, _ = root.Readlink(name) // it may have gone
		}
		out.Files = append(out.Files, f)
		size += 256 + 8*len(name) + 6*len(f.Target) // JSON can take six for one
	}
	return out, nil
}
