package siem_test

import (
	"os"
	"path/filepath"
	"testing"

	"sallyport/internal/config"
	"sallyport/internal/test/doctest"
	"sallyport/internal/test/testnet"
)

// The daemon takes each sink that a README shows.
func TestReadmes(t *testing.T) {
	files, err := filepath.Glob("*/README.md")
	if err != nil {
		t.Fatal(err)
	}
	ca, err := testnet.NewCA()
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range doctest.Blocks(string(text)) {
			if b.Kind != "yaml" {
				continue
			}
			checked++
			dir := t.TempDir()
			for name, content := range map[string][]byte{"ca.pem": ca.PEM(), "sallyport.yaml": []byte(b.Text)} {
				if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
					t.Fatal(err)
				}
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
