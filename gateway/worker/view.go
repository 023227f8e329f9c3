package worker

import (
	"os"
	"path/filepath"
	"slices"

	"sallyport/gateway/workerapi"
)

// viewRoot is where the view is as the process sees it.
func viewRoot(own bool) string {
	if own {
		return ""
	}
	return os.Getenv(workerapi.ViewVariable)
}

// systemFiles are the host's that the process reads where it sees the host.
func systemFiles() []string {
	files := slices.Concat(workerapi.HostFiles(), []string{"/etc/ssl", "/etc/pki", os.Getenv(workerapi.ViewVariable)}, filepath.SplitList(os.Getenv(workerapi.ReadVariable)))
	return slices.DeleteFunc(files, func(f string) bool { return f == "" })
}
