package worker

import (
	"os"
	"path/filepath"
	"slices"

	"sallyport/gateway/workerapi"
)

// viewRoot is where the worker finds its view: its own root directory, or the folder that
// the environment names.
func viewRoot(own bool) string {
	if own {
		return ""
	}
	return os.Getenv(workerapi.ViewVariable)
}

// systemFiles are the host's files that the worker may read where it has no root of its
// own.
func systemFiles() []string {
	files := slices.Concat(workerapi.HostFiles(), []string{"/etc/ssl", "/etc/pki", os.Getenv(workerapi.ViewVariable)}, filepath.SplitList(os.Getenv(workerapi.ReadVariable)))
	return slices.DeleteFunc(files, func(f string) bool { return f == "" })
}
