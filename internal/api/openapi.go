package api

import (
	_ "embed"
	"net/http"
	"sync"

	"github.com/goccy/go-yaml"
)

// document is the OpenAPI 3.1 description of the routes. A test validates every
// exchange of this package's tests against it.
//
//go:embed openapi.yaml
var document []byte

// documentJSON is the document once more.
var documentJSON = sync.OnceValues(func() ([]byte, error) { return yaml.YAMLToJSON(document) })

func (h *handler) openapiYAML(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/yaml") // RFC 9512
	_, _ = w.Write(document)                           // the client is gone if this fails
}

func (h *handler) openapiJSON(w http.ResponseWriter, r *http.Request) {
	data, err := documentJSON()
	if err != nil {
		writeProblem(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data) // the client is gone if this fails
}
