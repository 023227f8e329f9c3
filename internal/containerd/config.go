// Package containerd reads the configuration of a node's containerd, and says whether pods
// of Sallyport's class get the network that Sallyport guards. It does not see whether
// containerd was restarted since: until then it knows no such class, and starts no pod of it.
package containerd

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// Handler is the name of the runtime, which the RuntimeClass names.
const Handler = "sallyport"

// Fix is what to do about an error of [Check].
const Fix = "put examples/kubernetes/containerd/10-sallyport.toml into /etc/containerd/conf.d of this node and restart containerd"

// file is what is read of config.toml and of the files that it imports.
type file struct {
	Imports  []string                  `toml:"imports"`
	Plugins  map[string]map[string]any `toml:"plugins"`
	Disabled []string                  `toml:"disabled_plugins"`
}

// sections are the plugins that have runtimes: containerd 2's, and that of containerd 1,
// which containerd 2 reads too.
var sections = []string{"io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"}

// needed are the plugins without which containerd starts no pod, by the names that they have
// in all versions of the configuration.
var needed = []string{"cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images"}

// Check reports what is wrong with the runtime in containerd's configuration, which begins
// with this file: as containerd reads it, a file that is imported later overrides single
// keys. conf is the folder of the CNI configuration that the runtime has to use. A file that
// is imported and not there is left out: a container sees one folder of the node's.
func Check(config, conf string) error {
	runtime, off, err := runtime(config)
	if err != nil {
		return fmt.Errorf("%w: %s", err, Fix)
	}
	switch {
	case off != "":
		return fmt.Errorf("containerd starts no pods: take %s, and restart containerd", off)
	case runtime == nil:
		return fmt.Errorf("containerd has no runtime %s: %s", Handler, Fix)
	case runtime["runtime_type"] != "io.containerd.runsc.v1":
		return fmt.Errorf("containerd's runtime %s is of type %v, which is not gVisor's: %s", Handler, runtime["runtime_type"], Fix)
	case runtime["cni_conf_dir"] != conf:
		return fmt.Errorf("containerd's runtime %s has the cni_conf_dir %q and not %s, so that its pods would have the cluster's network: %s",
			Handler, runtime["cni_conf_dir"], conf, Fix)
	}
	if passed, _ := runtime["pod_annotations"].([]any); len(passed) > 0 {
		return fmt.Errorf("containerd's runtime %s passes pod_annotations on, by which the maker of a pod sets gVisor's flags: take them away", Handler)
	}
	return nil
}

// runtime returns the keys of the runtime, or nil, and which needed plugin is disabled where:
// what any of the files disables is.
func runtime(config string) (found map[string]any, off string, err error) {
	read := map[string]bool{}
	for pending := []string{config}; len(pending) > 0; pending = pending[1:] {
		path := pending[0]
		if read[path] {
			continue
		}
		read[path] = true
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) && path != config {
			continue
		}
		if err != nil {
			return nil, "", fmt.Errorf("reading containerd's configuration: %w", err)
		}
		var f file
		if err := toml.Unmarshal(text, &f); err != nil {
			return nil, "", fmt.Errorf("%s: %w", path, err)
		}
		if i := slices.IndexFunc(f.Disabled, func(p string) bool { return slices.Contains(needed, p) }); i >= 0 {
			off = fmt.Sprintf("%q out of disabled_plugins in %s", f.Disabled[i], path)
		}
		for _, section := range sections {
			more := table(table(table(f.Plugins[section], "containerd"), "runtimes"), Handler)
			if more != nil && found == nil {
				found = map[string]any{}
			}
			maps.Copy(found, more)
		}
		for _, pattern := range f.Imports {
			if !filepath.IsAbs(pattern) {
				pattern = filepath.Join(filepath.Dir(path), pattern)
			}
			files := []string{pattern}
			if strings.Contains(pattern, "*") {
				if files, err = filepath.Glob(pattern); err != nil {
					return nil, "", fmt.Errorf("%s: imports: %w", path, err)
				}
			}
			pending = append(pending, files...)
		}
	}
	return found, off, nil
}

func table(of map[string]any, key string) map[string]any {
	t, _ := of[key].(map[string]any)
	return t
}
