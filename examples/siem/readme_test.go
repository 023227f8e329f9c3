package siem_test

import (
	"os"
	"path/filepath"
	"testing"

	"sallyport/internal/config"
	"sallyport/internal/test/doctest"
	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

// The daemon takes each sink that a README shows.
func TestReadmes(t *testing.T) {
	files, err := filepath.Glob("*/README.md")
	must.OK(t, err)
	ca, err := testnet.NewCA()
	must.OK(t, err)
	checked := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		must.OK(t, err)
		for _, b := range doctest.Blocks(string(text)) {
			if b.Kind != "yaml" {
				continue
			}
			checked++
			dir := t.TempDir()
			for name, content := range map[string][]byte{"ca.pem": ca.PEM(), "sallyport.yaml": []byte(b.Text)} {
				must.OK(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
			}
			for _, f := range config.Check(t.Context(), filepath.Join(dir, "sallyport.yaml")) {
				t.Errorf("%s:%d: %v", file, b.Line, f)
			}
		}
	}
	if checked < 4 {
		t.Errorf("%d configurations", checked)
	}
}
