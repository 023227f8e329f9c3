package api

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"sallyport/internal/test/must"
)

var update = flag.Bool("update", false, "write openapi.yaml anew")

// openapi.yaml is what the table of routes and components.yaml say.
func TestDocumentIsTheRoutes(t *testing.T) {
	components, err := os.ReadFile("components.yaml")
	must.OK(t, err)
	head, rest, ok := bytes.Cut(components, []byte("components:\n"))
	if !ok {
		t.Fatal("components.yaml has no components")
	}
	var want bytes.Buffer
	want.WriteString("# Code generated from routes.go and components.yaml by `make generate`. DO NOT EDIT.\n")
	want.Write(head[bytes.Index(head, []byte("openapi:")):])
	want.WriteString("paths:\n")
	last := ""
	for _, r := range newHandler(Options{}).routes() {
		if r.pattern != last {
			fmt.Fprintf(&want, "  %s:\n", r.pattern)
			last = r.pattern
		}
		describe(&want, r)
	}
	want.WriteString("components:\n")
	want.Write(rest)
	if *update {
		must.OK(t, os.WriteFile("openapi.yaml", want.Bytes(), 0o644))
		return
	}
	if !bytes.Equal(document, want.Bytes()) {
		t.Error("openapi.yaml is not what the routes say: run `make generate`")
	}
}

const (
	inJSON  = "application/json"
	inBytes = "application/octet-stream"
)

var inPath = regexp.MustCompile(`\{(\w+)\}`)

// describe writes a route as an operation of OpenAPI.
func describe(w *bytes.Buffer, r route) {
	say := func(format string, a ...any) { fmt.Fprintf(w, format+"\n", a...) }
	say("    %s:", strings.ToLower(r.method))
	say("      operationId: %s", r.id)
	say("      summary: %s", quoted(r.summary))
	if r.note != "" {
		say("      description: %s", quoted(r.note))
	}
	say("      security: [{key: [%s]}]", r.scope)
	if r.shared {
		say("      x-tenant: true")
	}
	var parameters []string
	for _, m := range inPath.FindAllStringSubmatch(r.pattern, -1) {
		switch name := m[1]; {
		case name == "id" && strings.Contains(r.pattern, "/commands/"):
			parameters = append(parameters, component("parameters", "command"))
		case name == "name" && !strings.HasPrefix(r.pattern, "/v1/limits/"), name == "port", name == "snapshot":
			parameters = append(parameters, component("parameters", name))
		default:
			parameters = append(parameters, fmt.Sprintf("{name: %s, in: path, required: true, schema: {type: string}}", name))
		}
	}
	query := strings.Fields(r.query)
	if r.paged {
		query = append(query, "limit", "cursor")
	}
	if r.once {
		query = append(query, "idempotencyKey")
	}
	for _, name := range query {
		parameters = append(parameters, component("parameters", name))
	}
	if len(parameters) > 0 {
		say("      parameters:")
	}
	for _, p := range parameters {
		say("      - %s", p)
	}
	switch in := r.in; in {
	case "":
	case "bytes", "bytes?":
		say("      requestBody: {required: %t, content: {%s: %s}}", in == "bytes", inBytes, schema(inBytes))
	default:
		say("      requestBody: {required: true, content: {%s: %s}}", inJSON, schema(in))
	}
	say("      responses:")
	for answer := range strings.SplitSeq(r.out, " | ") {
		status, rest, _ := strings.Cut(answer, " ")
		kinds, text, _ := strings.Cut(rest, " ")
		parts := []string{"description: " + quoted(text)}
		var headers, contents []string
		names := strings.Fields(r.headers)
		if r.paged {
			names = append(names, "Link")
		}
		if r.once && !r.secret {
			names = append(names, "Idempotency-Replayed")
		}
		for _, name := range names {
			headers = append(headers, name+": "+component("headers", name))
		}
		for kind := range strings.SplitSeq(kinds, "+") {
			switch {
			case kind == "-":
			case strings.Contains(kind, "/"):
				contents = append(contents, kind+": "+schema(kind))
			default:
				contents = append(contents, inJSON+": "+schema(kind))
			}
		}
		if headers != nil {
			parts = append(parts, "headers: {"+strings.Join(headers, ", ")+"}")
		}
		if contents != nil {
			parts = append(parts, "content: {"+strings.Join(contents, ", ")+"}")
		}
		say("        '%s': {%s}", status, strings.Join(parts, ", "))
	}
	say("        default: %s", component("responses", "Problem"))
}

// schema is that of a name in components.yaml, of a list of it, or of a media type.
func schema(kind string) string {
	of, list := strings.CutPrefix(kind, "[]")
	switch {
	case list:
		return "{schema: {type: array, items: " + component("schemas", of) + "}}"
	case kind == inBytes || kind == "application/x-tar":
		return "{schema: {type: string, format: binary}}"
	case strings.Contains(kind, "/"):
		return "{schema: {type: string}}"
	}
	return "{schema: " + component("schemas", kind) + "}"
}

func component(kind, name string) string { return "{$ref: '#/components/" + kind + "/" + name + "'}" }

func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
