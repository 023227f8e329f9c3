// Command render prints the objects of a Helm chart as YAML, in the order in which they
// are to be created, as `helm template` does it.
//
// It is a module of its own, so that Helm's dependencies are not Sallyport's.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	release "helm.sh/helm/v4/pkg/release/v1/util"
	"sigs.k8s.io/yaml"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("render: ")
	chart := flag.String("chart", "../chart", "`folder` of the chart")
	values := flag.String("values", "", "`file` with values in place of the chart's own")
	out := flag.String("o", "", "`file` to write; default: standard output")
	head := flag.String("head", "", "a comment for the first line")
	flag.Parse()

	text, err := render(*chart, *values)
	if err != nil {
		log.Fatal(err)
	}
	if *head != "" {
		text = append([]byte("# "+*head+"\n"), text...)
	}
	if *out == "" {
		_, err = os.Stdout.Write(text)
	} else {
		err = os.WriteFile(*out, text, 0o644)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// render returns the objects of the release sallyport in the namespace sallyport.
func render(dir, valuesFile string) ([]byte, error) {
	chart, err := loader.LoadDir(dir)
	if err != nil {
		return nil, err
	}
	values := map[string]any{}
	if valuesFile != "" {
		text, err := os.ReadFile(valuesFile)
		if err != nil {
			return nil, err
		}
		if err := yaml.Unmarshal(text, &values); err != nil {
			return nil, fmt.Errorf("%s: %w", valuesFile, err)
		}
	}
	options := common.ReleaseOptions{Name: "sallyport", Namespace: "sallyport", Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(chart, values, options, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return nil, err
	}
	for name := range files {
		if strings.HasSuffix(name, "NOTES.txt") {
			delete(files, name)
		}
	}
	_, objects, err := release.SortManifests(files, nil, release.InstallOrder)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	for _, o := range objects {
		fmt.Fprintf(&b, "---\n%s\n", strings.TrimSpace(o.Content))
	}
	return b.Bytes(), nil
}
