package containerd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/test/must"
)

const runtimeTable = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.sallyport]\n"

func TestCheck(t *testing.T) {
	example, err := os.ReadFile("../../examples/kubernetes/containerd/10-sallyport.toml")
	must.OK(t, err)
	dropIn := string(example)
	const importing = "version = 3\nimports = ['ROOT/conf.d/*.toml']\n"

	for _, c := range []struct {
		name  string
		files map[string]string
		want  string // a part of the error; "" for none
	}{
		{"the file of the example", map[string]string{"config.toml": importing, "conf.d/10-sallyport.toml": dropIn}, ""},
		{"a relative import", map[string]string{"config.toml": "imports = ['conf.d/10-sallyport.toml']", "conf.d/10-sallyport.toml": dropIn}, ""},
		{"all in one file", map[string]string{"config.toml": dropIn}, ""},
		{"containerd 1's section", map[string]string{"config.toml": strings.ReplaceAll(dropIn, "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")}, ""},
		{"a circle of imports", map[string]string{"config.toml": importing, "conf.d/10-sallyport.toml": dropIn + "\n", "conf.d/20.toml": "imports = ['ROOT/config.toml']"}, ""},
		{"imports of nothing", map[string]string{"config.toml": "imports = ['/nonexistent/a.toml', '/nonexistent/*.toml', 'conf.d/*.toml']", "conf.d/10-sallyport.toml": dropIn}, ""},

		{"no configuration", nil, "reading containerd's configuration"},
		{"no runtime", map[string]string{"config.toml": importing}, "no runtime sallyport"},
		{"not imported", map[string]string{"config.toml": "version = 3", "conf.d/10-sallyport.toml": dropIn}, "no runtime sallyport"},
		{"the cluster's network", map[string]string{"config.toml": runtimeTable + "runtime_type = 'io.containerd.runsc.v1'"}, "the cluster's network"},
		{"a later file changes the network", map[string]string{"config.toml": importing, "conf.d/10-sallyport.toml": dropIn,
			"conf.d/20.toml": runtimeTable + "cni_conf_dir = '/etc/cni/net.d'"}, "the cluster's network"},
		{"not gVisor", map[string]string{"config.toml": importing, "conf.d/10-sallyport.toml": dropIn,
			"conf.d/20.toml": runtimeTable + "runtime_type = 'io.containerd.runc.v2'"}, "not gVisor's"},
		{"annotations", map[string]string{"config.toml": importing, "conf.d/10-sallyport.toml": dropIn,
			"conf.d/20.toml": runtimeTable + "pod_annotations = ['dev.gvisor.*']"}, "pod_annotations"},
		{"no CRI, as Docker's package has it", map[string]string{"config.toml": "disabled_plugins = ['cri']\n" + importing, "conf.d/10-sallyport.toml": dropIn},
			`take "cri" out of disabled_plugins in ROOT/config.toml`},
		{"an imported file disables CRI", map[string]string{"config.toml": importing, "conf.d/10-sallyport.toml": dropIn,
			"conf.d/20.toml": "disabled_plugins = ['io.containerd.snapshotter.v1.btrfs', 'io.containerd.cri.v1.runtime']"}, "ROOT/conf.d/20.toml"},
		{"other plugins disabled", map[string]string{"config.toml": "disabled_plugins = ['io.containerd.snapshotter.v1.btrfs']\n" + importing, "conf.d/10-sallyport.toml": dropIn}, ""},
		{"no TOML", map[string]string{"config.toml": "["}, "config.toml"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			for name, text := range c.files {
				file := filepath.Join(root, name)
				must.OK(t, os.MkdirAll(filepath.Dir(file), 0o755))
				must.OK(t, os.WriteFile(file, []byte(strings.ReplaceAll(text, "ROOT", root)), 0o644))
			}
			want := strings.ReplaceAll(c.want, "ROOT", root)
			err := Check(filepath.Join(root, "config.toml"), "/etc/cni/sallyport.d")
			switch {
			case c.want == "" && err != nil:
				t.Errorf("got %v", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), want)):
				t.Errorf("got %v, want %q in it", err, want)
			}
		})
	}
}
