package api_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	gocmp "github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"sallyport/internal/api"
	"sallyport/policy/approval"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
	"sallyport/sandbox/client"
)

// TestMain fails when a test leaks a goroutine, and a run of all tests when a
// route of the API has not answered in any with what it is for.
func TestMain(m *testing.M) { goleak.VerifyTestMain(covered{m}) }

type covered struct{ m *testing.M }

func (c covered) Run() int {
	code := c.m.Run()
	if code != 0 || slices.ContainsFunc(os.Args, func(a string) bool {
		return strings.HasPrefix(a, "-test.run=") && a != "-test.run=" || strings.HasPrefix(a, "-test.fuzz") || strings.HasPrefix(a, "-test.list") || strings.HasPrefix(a, "-test.bench=")
	}) {
		return code
	}
	hit.Lock()
	defer hit.Unlock()
	for route := range api.Routes() {
		if !hit.routes[route] {
			fmt.Fprintf(os.Stderr, "no test has had an answer of %s\n", route)
			code = 1
		}
	}
	return code
}

// hit are the routes that have answered with success.
var hit = struct {
	sync.Mutex
	routes map[string]bool
}{routes: map[string]bool{}}

var described = sync.OnceValues(func() (*openapi3.T, error) {
	for _, text := range []string{"text/event-stream", "application/jsonl", "application/x-pem-file", "application/x-ndjson"} {
		openapi3filter.RegisterBodyDecoder(text, openapi3filter.PlainBodyDecoder)
	}
	for _, raw := range []string{"application/octet-stream", "application/x-tar"} {
		openapi3filter.RegisterBodyDecoder(raw, openapi3filter.FileBodyDecoder)
	}
	openapi3filter.RegisterBodyDecoder("application/yaml", openapi3filter.PlainBodyDecoder)
	doc, err := openapi3.NewLoader().LoadFromData(api.Document())
	if err != nil {
		return nil, err
	}
	return doc, doc.Validate(context.Background())
})

// checked holds every exchange with a handler to the OpenAPI document.
func checked(t *testing.T, next http.Handler) http.Handler {
	t.Helper()
	doc := need[*openapi3.T](t)(described())
	router := need[routers.Router](t)(gorillamux.NewRouter(doc))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent := &record{}
		asked := r.Clone(r.Context())
		r = r.WithContext(r.Context()) // the server's own stays as it is
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.TeeReader(r.Body, sent), r.Body}
		seen := &seenWriter{ResponseWriter: w}
		defer func() {
			seen.status = cmp.Or(seen.status, http.StatusOK) // of an answer without a body
			if err := agrees(doc, router, asked, sent.bytes(), seen); err != nil {
				t.Errorf("%s %s answered %d, and this is not what openapi.yaml says: %v\nasked: %.300s\nanswered: %.600s", asked.Method, asked.URL, seen.status, err, sent.bytes(), seen.body.String())
			}
		}()
		next.ServeHTTP(seen, r)
	})
}

// record is what is read of a request. On its way to an agent that is for a moment
// longer than its handler runs.
type record struct {
	mu   sync.Mutex
	text []byte
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text = append(r.text, p...)
	return len(p), nil
}

func (r *record) bytes() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.text)
}

// seenWriter keeps what is answered.
type seenWriter struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (s *seenWriter) WriteHeader(status int) {
	s.status = status
	s.ResponseWriter.WriteHeader(status)
}

func (s *seenWriter) Write(p []byte) (int, error) {
	if s.status == 0 {
		s.status = http.StatusOK
	}
	s.body.Write(p)
	return s.ResponseWriter.Write(p)
}

func (s *seenWriter) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// Hijack is that of a connection whose first answer is read too.
func (s *seenWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(s.ResponseWriter).Hijack()
	s.status = http.StatusSwitchingProtocols
	return conn, rw, err
}

// unsaid are headers that need not be described.
var unsaid = []string{"Content-Type", "Content-Length", "Date", "Connection"}

func agrees(doc *openapi3.T, router routers.Router, r *http.Request, sent []byte, got *seenWriter) error {
	r.Body = io.NopCloser(bytes.NewReader(sent))
	r.URL = &url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery}
	route, params, err := router.FindRoute(r)
	if err != nil {
		// There is no such route, and all that may be said is a problem.
		if got.Header().Get("Content-Type") != "application/problem+json" || !slices.Contains([]int{401, 403, 404, 405}, got.status) {
			return fmt.Errorf("it is not described: %w", err)
		}
		var v any
		if err := json.Unmarshal(got.body.Bytes(), &v); err != nil {
			return err
		}
		return doc.Components.Schemas["Problem"].Value.VisitJSON(v, openapi3.EnableJSONSchema2020())
	}
	options := &openapi3filter.Options{IncludeResponseStatus: true, RejectWhenRequestBodyNotSpecified: true, AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, MultiError: true}
	in := &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route, Options: options}
	success := got.status < 300
	if success {
		hit.Lock()
		hit.routes[route.Method+" "+route.Path] = true
		hit.Unlock()
		// A wrong call is answered with a problem; a right one is described.
		if kind := r.Header.Get("Content-Type"); kind == "" || kind == "application/x-www-form-urlencoded" {
			r.Header.Set("Content-Type", "application/json") // what curl says without being asked
		}
		if err := openapi3filter.ValidateRequest(context.Background(), in); err != nil {
			return fmt.Errorf("the request: %w", err)
		}
	}
	header := got.Header()
	if got.status == http.StatusSwitchingProtocols {
		header = http.Header{"Upgrade": {r.Header.Get("Upgrade")}}
	}
	out := &openapi3filter.ResponseValidationInput{RequestValidationInput: in, Status: got.status, Header: header, Options: options}
	out.SetBodyBytes(got.body.Bytes())
	if err := openapi3filter.ValidateResponse(context.Background(), out); err != nil {
		return fmt.Errorf("the response: %w", err)
	}
	answer := route.Operation.Responses.Status(got.status)
	if answer == nil {
		answer = route.Operation.Responses.Default()
		if success {
			return fmt.Errorf("a success that is not described")
		}
	}
	said := slices.Clone(unsaid)
	for name := range answer.Value.Headers {
		said = append(said, http.CanonicalHeaderKey(name))
	}
	for name := range header {
		if !slices.Contains(said, name) {
			return fmt.Errorf("the header %s is not described", name)
		}
	}
	return lines(doc, header.Get("Content-Type"), got.body.String())
}

// lines holds what is streamed to its schema.
func lines(doc *openapi3.T, kind, body string) error {
	schema, prefix := "", ""
	switch kind {
	case "text/event-stream":
		schema, prefix = "Event", "data: "
	case "application/jsonl":
		schema = "ApprovalList"
	default:
		return nil
	}
	for line := range strings.Lines(body) {
		text, ok := strings.CutPrefix(line, prefix)
		if !ok || !strings.HasSuffix(line, "\n") { // cut off with its reader
			continue
		}
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			return err
		}
		if err := doc.Components.Schemas[schema].Value.VisitJSON(v, openapi3.EnableJSONSchema2020()); err != nil {
			return err
		}
	}
	return nil
}

// The schemas have the fields that are sent and read, also those that no test sets.
func TestSchemasHaveTheFields(t *testing.T) {
	doc := need[*openapi3.T](t)(described())
	for name, v := range map[string]any{
		"Spec": sandbox.Spec{}, "SpecChange": sandbox.SpecChange{}, "Sandbox": sandbox.Info{}, "Command": sandbox.CommandSpec{}, "CommandInfo": sandbox.CommandInfo{}, "TerminalSize": sandbox.Size{}, "File": sandbox.File{}, "FileList": wire.Listing{}, "Key": api.KeyText{}, "KeyRequest": api.KeyRequest{},
		"Image": sandbox.Image{}, "ImageStep": sandbox.ImageStep{}, "ImagePull": client.ImagePull{},
		"Problem": client.Problem{}, "Event": client.Event{}, "Secret": api.Secret{}, "SecretChange": api.SecretChange{}, "Rotation": api.Rotation{}, "Client": api.ProxyClient{}, "Limit": api.Limit{},
		"ApprovalRequest": approval.Request{}, "ApprovalList": api.ApprovalList{}, "Answer": approval.Answer{},
	} {
		got := slices.Sorted(maps.Keys(doc.Components.Schemas[name].Value.Properties))
		if d := gocmp.Diff(slices.Sorted(slices.Values(fields(reflect.TypeOf(v)))), got); d != "" {
			t.Errorf("%s: the type (-) and openapi.yaml (+):\n%s", name, d)
		}
	}
}

func fields(of reflect.Type) (names []string) {
	for f := range of.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous:
			names = append(names, fields(f.Type)...)
		case name != "-":
			names = append(names, name)
		}
	}
	return names
}
