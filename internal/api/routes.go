package api

import (
	_ "embed"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/goccy/go-yaml"

	"sallyport/audit/retention"
	"sallyport/policy"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
	"sallyport/sandbox/manager"
)

// route is one operation of the API. The table of routes is the source of everything that
// is said of them: the mux, the check of scopes, and openapi.yaml, which `make generate`
// writes from the table and from the schemas in components.yaml. To add a route: a line
// in [handler.routes], its row in the test's matrix of scopes, and a test that calls it.
type route struct {
	method, pattern string
	serve           http.HandlerFunc
	// scope is the scope that a caller needs; empty is any.
	scope Scope
	// shared admits callers of a tenant too. The request's context confines the handler to
	// their sandboxes (sandbox.ForOwner); a handler that lists filters. Any other route is
	// for the host's own callers.
	shared bool
	// readOnly marks a POST that changes nothing, so that callers in a container may send
	// it, as they may send a GET.
	readOnly bool
	// once accepts an Idempotency-Key.
	once bool
	// secret marks an answer that is shown once and never stored.
	secret bool
	// hijacks marks a route that takes the connection over.
	hijacks bool
	// paged marks a list in pages.
	paged bool
	// maxBody bounds the body in bytes; 0 is [maxJSON].
	maxBody int64

	// These are for the document alone. Names are those of components.yaml.
	id, summary, note string
	in                string // schema of the JSON body; "bytes" for a stream, "bytes?" for one that may be missing
	query, headers    string // parameters and headers of the answer, with a space between
	out               string // STATUS SCHEMA TEXT of each success, with " | " between; SCHEMA may be []NAME, a media type or -
}

func (r route) changes() bool {
	return r.method != http.MethodGet && r.method != http.MethodHead && !r.readOnly
}

// routes has those of one path one after another.
func (h *handler) routes() []route {
	const get, put, post, del, patch = http.MethodGet, http.MethodPut, http.MethodPost, http.MethodDelete, http.MethodPatch
	return append([]route{
		{method: get, pattern: "/v1/openapi.json", id: "openapiJSON", serve: h.openapiJSON, shared: true,
			summary: "This document as JSON", out: "200 Document OpenAPI 3.1"},
		{method: get, pattern: "/v1/openapi.yaml", id: "openapiYAML", serve: h.openapiYAML, shared: true,
			summary: "This document as it is written", out: "200 application/yaml OpenAPI 3.1"},
		{method: get, pattern: "/v1/status", id: "status", serve: call(h, http.StatusOK, h.status), scope: ScopeRead,
			summary: "What the daemon says of itself", out: "200 Status The state"},
		{method: post, pattern: "/v1/reload", id: "reload", serve: call(h, http.StatusOK, h.reload), scope: ScopePolicy,
			summary: "Read the configuration again; the running policy stays where that fails", out: "200 Status The state after it"},
		{method: post, pattern: "/v1/shutdown", id: "shutdown", serve: h.shutdown, scope: ScopeAdmin,
			summary: "Stop sandboxes, engine and daemon", out: "202 - It will"},
		{method: get, pattern: "/v1/events", id: "events", serve: h.events, scope: ScopeRead, shared: true,
			summary: "What happens, as server-sent events", query: "lastEventID", headers: "Cache-Control", out: "200 text/event-stream One event after the other, each with its Event as data"},
		{method: get, pattern: "/v1/audit", id: "listAuditEvents", serve: h.serveAudit, scope: ScopeRead, shared: true, paged: true,
			summary: "Events of the audit log that fit, the oldest first", note: "Each is an event of OCSF; docs/operate/audit.md describes them.",
			query: "auditSandbox destination rule credential decision kind text sinceTime until", out: "200 []AuditEvent A page of them"},

		{method: post, pattern: "/v1/policy/explain", id: "explain", serve: call(h, http.StatusOK, h.explain), scope: ScopeRead, readOnly: true, maxBody: maxJSON + policy.MaxBody*4/3,
			summary: "What would become of a request", in: "PolicyInput", out: "200 Explanation The decision and why"},
		{method: get, pattern: "/v1/policy/explain/{decision}", id: "explainDecision", serve: call(h, http.StatusOK, h.explainDecision), scope: ScopeRead,
			summary: "What the policy makes of a recorded decision", out: "200 Explanation The recorded decision, and that of today"},

		{method: get, pattern: "/v1/audit/holds", id: "listHolds", serve: pages(h, func(o retention.Hold) string { return o.Name }, h.holds), scope: ScopeRead, paged: true,
			summary: "Legal holds of the audit log", out: "200 []Hold A page of them by name"},
		{method: put, pattern: "/v1/audit/holds/{name}", id: "addHold", serve: call(h, http.StatusCreated, h.addHold), scope: ScopeAdmin,
			summary: "Keep all records of the audit log from now on", in: "HoldReason", out: "201 Hold The hold"},
		{method: post, pattern: "/v1/audit/holds/{name}/release", id: "releaseHold", serve: call(h, http.StatusOK, h.releaseHold), scope: ScopeAdmin,
			summary: "End a legal hold", in: "HoldReason", out: "204 - Done"},
		{method: post, pattern: "/v1/audit/deletions", id: "deleteAudit", serve: call(h, http.StatusAccepted, h.deleteAudit), scope: ScopeAdmin,
			summary: "Delete the oldest records of the audit log", note: "Whole segments are deleted, once a checkpoint covers the event that says so. It is refused under a legal hold, and without force while a sink lacks some of the records.", in: "DeleteRequest", out: "202 DeletePlan What is being deleted"},
		{method: post, pattern: "/v1/audit/sinks/{name}/test", id: "testSink", serve: call(h, http.StatusOK, h.testSink), scope: ScopeAdmin,
			summary: "Send one record to a sink of the audit log, and say what its receiver answered", out: "200 SinkTest What came of it"},

		{method: get, pattern: "/v1/limits", id: "listLimits", serve: pages(h, func(l Limit) string { return l.Name + "\x00" + l.Per + "\x00" + l.Subject }, h.limits), scope: ScopeRead, paged: true,
			summary: "Counters of limits that are in use", out: "200 []Limit A page of them by name"},
		{method: post, pattern: "/v1/limits/{name}/reset", id: "resetLimit", serve: call(h, http.StatusOK, h.resetLimit), scope: ScopePolicy,
			summary: "Empty the counters of a limit", in: "ResetRequest", out: "200 ResetResult How many were emptied"},

		{method: get, pattern: "/v1/approvals", id: "listApprovals", serve: h.listApprovals, scope: ScopeRead, shared: true,
			summary: "What waits for an operator, and what is granted", query: "watch", out: "200 ApprovalList+application/jsonl The lists; with watch=true again on each change, a line of JSON each"},
		{method: post, pattern: "/v1/approvals/{id}", id: "answerApproval", serve: call(h, http.StatusOK, h.answerApproval), scope: ScopeApprove, shared: true,
			summary: "Answer what waits, or take a grant back with a no", in: "Answer", out: "200 ApprovalRequest The request as it stands"},

		{method: get, pattern: "/v1/secrets", id: "listSecrets", serve: pages(h, func(s Secret) string { return s.Name + "\x00" + s.Source }, h.secrets), scope: ScopeSecrets, paged: true,
			summary: "Credentials and where their secrets live; never values", out: "200 []Secret A page of them by name"},
		{method: post, pattern: "/v1/secrets-key/rotation", id: "rotateSecretsKey", serve: call(h, http.StatusOK, h.rotateKey), scope: ScopeAdmin,
			summary: "Seal every secret of the embedded store with a new key, and forget the old one", out: "200 Rotation What was done"},
		{method: get, pattern: "/v1/secrets/{name}/history", id: "secretHistory", serve: call(h, http.StatusOK, h.secretHistory), scope: ScopeSecrets,
			summary: "The last 100 changes of a secret of the embedded store, the newest last: versions, times and operators", out: "200 []SecretChange The changes"},
		{method: put, pattern: "/v1/secrets/{name}", id: "setSecret", serve: call(h, http.StatusOK, h.setSecret), scope: ScopeSecrets,
			summary: "Set the fields of a secret", in: "SecretFields", out: "204 - Done"},
		{method: del, pattern: "/v1/secrets/{name}", id: "removeSecret", serve: call(h, http.StatusOK, h.deleteSecret), scope: ScopeSecrets,
			summary: "Remove a secret", out: "204 - Done"},

		{method: get, pattern: "/v1/keys", id: "listKeys", serve: pages(h, func(k Key) string { return k.Name }, h.keys), scope: ScopeAdmin, paged: true,
			summary: "API keys, without their text", out: "200 []Key A page of them by name"},
		{method: put, pattern: "/v1/keys/{name}", id: "createKey", serve: call(h, http.StatusCreated, h.createKey), scope: ScopeAdmin, once: true, secret: true,
			summary: "Make an API key, which is shown this once", in: "KeyRequest", out: "201 KeyText The key"},
		{method: del, pattern: "/v1/keys/{name}", id: "removeKey", serve: call(h, http.StatusOK, h.removeKey), scope: ScopeAdmin,
			summary: "Void an API key at once", out: "204 - Done"},

		{method: get, pattern: "/v1/clients", id: "listClients", serve: pages(h, func(c ProxyClient) string { return c.Name }, h.clients), scope: ScopeRead, paged: true,
			summary: "Users of the explicit proxy", out: "200 []Client A page of them by name"},
		{method: put, pattern: "/v1/clients/{name}", id: "addClient", serve: call(h, http.StatusCreated, h.addClient), scope: ScopeAdmin, once: true, secret: true,
			summary: "Add a user of the explicit proxy, whose token is shown this once", in: "ClientRequest", out: "201 ClientToken The token"},
		{method: del, pattern: "/v1/clients/{name}", id: "removeClient", serve: call(h, http.StatusOK, h.removeClient), scope: ScopeAdmin,
			summary: "Remove a user of the explicit proxy", out: "204 - Done"},
		{method: get, pattern: "/v1/clients/{name}/ca", id: "clientCertificate", serve: h.clientRoot, scope: ScopeRead,
			summary: "What a user of the explicit proxy must trust", out: "200 application/x-pem-file A certificate"},

		{method: get, pattern: "/v1/images", id: "listImages", serve: pages(h, func(i sandbox.Image) string { return strings.Join(i.Names, " ") + "\x00" + i.ID }, h.images), scope: ScopeRead, paged: true,
			summary: "Images that sandboxes can be made of", out: "200 []Image A page of them by name"},
		{method: del, pattern: "/v1/images", id: "removeImage", serve: call(h, http.StatusOK, h.removeImage), scope: ScopeAdmin,
			summary: "Take an image's name away, and the image with its last one", note: "The default image stays, and so does one that a sandbox is made of.", query: "imageName", out: "204 - Done"},
		{method: post, pattern: "/v1/images/pull", id: "pullImage", serve: h.pullImage, scope: ScopeAdmin,
			summary: "Have the engine fetch an image from its registry", note: "The engine asks from the host's own network, with the credential that the configuration names for the registry. It is given up when the caller goes.", in: "PullRequest", out: "200 application/x-ndjson Lines of JSON, each an ImagePull; the last has the image or the problem"},
		{method: put, pattern: "/v1/images/archive", id: "loadImages", serve: call(h, http.StatusOK, h.loadImages), scope: ScopeAdmin, maxBody: maxInput,
			summary: "Have the engine read images out of a tar archive, as docker save writes it", in: "bytes", out: "200 []Image The images"},

		{method: get, pattern: "/v1/sandboxes", id: "listSandboxes", serve: pages(h, func(i sandbox.Info) string { return i.Name }, h.list), scope: ScopeRead, shared: true, paged: true,
			summary: "Sandboxes of the caller", out: "200 []Sandbox A page of them by name"},
		{method: put, pattern: "/v1/sandboxes/{name}", id: "createSandbox", serve: h.create, scope: ScopeRun, shared: true, once: true,
			summary: "Get a sandbox, made now if there is none", note: "Tags need the scope policy besides, runtime runc the scope admin.", in: "Spec", out: "200 Sandbox It was there | 201 Sandbox It was made"},
		{method: get, pattern: "/v1/sandboxes/{name}", id: "getSandbox", serve: call(h, http.StatusOK, h.get), scope: ScopeRead, shared: true,
			summary: "One sandbox", out: "200 Sandbox The sandbox"},
		{method: patch, pattern: "/v1/sandboxes/{name}", id: "setSandbox", serve: call(h, http.StatusOK, h.set), scope: ScopeRun, shared: true,
			summary: "Change what a sandbox is", note: "Tags, labels and lifetime hold at once, the rest from the next session on; what only a new sandbox can have is refused. Tags, and an end of being offline, need the scope policy besides.", in: "SpecChange", out: "200 Sandbox The sandbox"},
		{method: del, pattern: "/v1/sandboxes/{name}", id: "removeSandbox", serve: call(h, http.StatusOK, h.remove), scope: ScopeRun, shared: true,
			summary: "Remove a sandbox with its files and memory", out: "204 - Done"},
		{method: post, pattern: "/v1/sandboxes/{name}/start", id: "startSandbox", serve: h.change((*manager.Manager).Start), scope: ScopeRun, shared: true, once: true,
			summary: "Start a sandbox that is stopped", out: "200 Sandbox The sandbox"},
		{method: post, pattern: "/v1/sandboxes/{name}/stop", id: "stopSandbox", serve: h.change((*manager.Manager).Stop), scope: ScopeRun, shared: true, once: true,
			summary: "Stop a sandbox; its files stay", out: "200 Sandbox The sandbox"},
		{method: post, pattern: "/v1/sandboxes/{name}/pause", id: "pauseSandbox", serve: h.change((*manager.Manager).Pause), scope: ScopeRun, shared: true, once: true,
			summary: "Have a sandbox stand still in memory; any use wakes it", out: "200 Sandbox The sandbox"},
		{method: post, pattern: "/v1/sandboxes/{name}/resume", id: "resumeSandbox", serve: h.change((*manager.Manager).Wake), scope: ScopeRun, shared: true, once: true,
			summary: "Wake a sandbox that is paused or hibernated", out: "200 Sandbox The sandbox"},
		{method: post, pattern: "/v1/sandboxes/{name}/hibernate", id: "hibernateSandbox", serve: h.change((*manager.Manager).Hibernate), scope: ScopeRun, shared: true, once: true,
			summary: "Write a sandbox's memory to disk and free its RAM; any use wakes it", out: "200 Sandbox The sandbox"},
		{method: post, pattern: "/v1/sandboxes/{name}/wake", id: "wakeSandbox", serve: h.change((*manager.Manager).Wake), scope: ScopeRun, shared: true, once: true,
			summary: "Wake a sandbox that is hibernated or paused", out: "200 Sandbox The sandbox"},
		{method: post, pattern: "/v1/sandboxes/{name}/recover", id: "recoverSandbox", serve: h.change((*manager.Manager).Recover), scope: ScopeRun, shared: true, once: true,
			summary: "Get a sandbox out of the state error; it is stopped then", out: "200 Sandbox The sandbox"},
		{method: get, pattern: "/v1/sandboxes/{name}/snapshots", id: "listSnapshots", serve: pages(h, func(s sandbox.Snapshot) string { return s.Created.UTC().Format("20060102150405.000 ") + s.Name }, h.snapshots), scope: ScopeRead, shared: true, paged: true,
			summary: "List what was kept of a sandbox", out: "200 []Snapshot A page of snapshots, the oldest first"},
		{method: post, pattern: "/v1/sandboxes/{name}/snapshots", id: "makeSnapshot", serve: call(h, http.StatusCreated, h.makeSnapshot), scope: ScopeRun, shared: true, once: true,
			summary: "Keep what a sandbox is now; it stands still meanwhile", in: "SnapshotSpec", out: "201 Snapshot The snapshot"},
		{method: del, pattern: "/v1/sandboxes/{name}/snapshots/{snapshot}", id: "removeSnapshot", serve: call(h, http.StatusOK, h.removeSnapshot), scope: ScopeRun, shared: true, once: true,
			summary: "Remove what was kept", out: "204 - It is removed"},
		{method: post, pattern: "/v1/sandboxes/{name}/restore", id: "restoreSandbox", serve: call(h, http.StatusOK, h.restore), scope: ScopeRun, shared: true, once: true,
			summary: "Make a sandbox what it was at a snapshot; what it is now is kept as another", in: "RestoreSpec", out: "200 Sandbox The sandbox"},
		{method: post, pattern: "/v1/sandboxes/{name}/fork", id: "forkSandbox", serve: call(h, http.StatusCreated, h.fork), scope: ScopeRun, shared: true, once: true,
			summary: "Make sandboxes of one, with its files and its processes", in: "ForkSpec", out: "201 []Sandbox The children"},
		{method: post, pattern: "/v1/sandboxes/{name}/exec", id: "exec", serve: h.exec, scope: ScopeRun, shared: true, hijacks: true,
			summary: "Run a command with its streams on this connection", in: "Command", query: "Upgrade", headers: "Upgrade", out: "101 - Frames follow, as sallyport-exec/1 in docs/reference/api.md has them"},
		{method: post, pattern: "/v1/sandboxes/{name}/commands", id: "startCommand", serve: call(h, http.StatusCreated, h.startCommand), scope: ScopeRun, shared: true, once: true,
			summary: "Start a command in the background", in: "Command", out: "201 CommandInfo It runs"},
		{method: get, pattern: "/v1/sandboxes/{name}/commands", id: "listCommands", serve: call(h, http.StatusOK, h.listCommands), scope: ScopeRun, shared: true,
			summary: "The session's commands, the oldest first", out: "200 []CommandInfo All of them"},
		{method: get, pattern: "/v1/sandboxes/{name}/commands/{id}", id: "command", serve: call(h, http.StatusOK, h.command), scope: ScopeRun, shared: true,
			summary: "How one command is", out: "200 CommandInfo How it is now"},
		{method: del, pattern: "/v1/sandboxes/{name}/commands/{id}", id: "killCommand", serve: call(h, http.StatusOK, h.killCommand), scope: ScopeRun, shared: true,
			summary: "End a command and all that it started", out: "200 CommandInfo How it is now"},
		{method: post, pattern: "/v1/sandboxes/{name}/commands/{id}/signal", id: "signalCommand", serve: call(h, http.StatusOK, h.signalCommand), scope: ScopeRun, shared: true,
			summary: "Send a signal to a command", in: "Signal", out: "200 CommandInfo How it is now"},
		{method: post, pattern: "/v1/sandboxes/{name}/commands/{id}/resize", id: "resizeCommand", serve: call(h, http.StatusOK, h.resizeCommand), scope: ScopeRun, shared: true,
			summary: "Change the size of its terminal", in: "TerminalSize", out: "200 CommandInfo How it is now"},
		{method: post, pattern: "/v1/sandboxes/{name}/commands/{id}/stdin", id: "feedCommand", serve: call(h, http.StatusOK, h.feedCommand), scope: ScopeRun, shared: true, maxBody: maxInput,
			summary: "Give a command input", in: "bytes", query: "open", out: "200 CommandInfo How it is now"},
		{method: get, pattern: "/v1/sandboxes/{name}/commands/{id}/output", id: "commandOutput", serve: h.commandOutput, scope: ScopeRun, shared: true,
			summary: "Read what a command wrote, from an offset on", query: "stream from follow", headers: "Sallyport-From X-Content-Type-Options", out: "200 application/octet-stream Bytes, the first of which is at Sallyport-From"},
		{method: get, pattern: "/v1/sandboxes/{name}/files", id: "readFile", serve: h.files(h.readFile), scope: ScopeRun, shared: true,
			summary: "Read a file", query: "path user", headers: "Sallyport-File Content-Disposition X-Content-Type-Options", out: "200 application/octet-stream Its contents"},
		{method: put, pattern: "/v1/sandboxes/{name}/files", id: "writeFile", serve: ofFiles(h, writeFile), scope: ScopeRun, shared: true, maxBody: maxInput,
			summary: "Put a file in the place of what is there", in: "bytes?", query: "path user mode parents", out: "200 File The file"},
		{method: del, pattern: "/v1/sandboxes/{name}/files", id: "removeFile", serve: ofFiles(h, removeFile), scope: ScopeRun, shared: true,
			summary: "Remove a file or a folder", query: "path user recursive", out: "204 - It is gone"},
		{method: get, pattern: "/v1/sandboxes/{name}/files/stat", id: "statFile", serve: ofFiles(h, statFile), scope: ScopeRun, shared: true,
			summary: "What is known of a file", query: "path user followLink", out: "200 File The file"},
		{method: get, pattern: "/v1/sandboxes/{name}/files/list", id: "listFiles", serve: ofFiles(h, listFiles), scope: ScopeRun, shared: true,
			summary: "A page of a folder", query: "path user after", out: "200 FileList A page by name"},
		{method: post, pattern: "/v1/sandboxes/{name}/files/mkdir", id: "makeFolder", serve: ofFiles(h, makeFolder), scope: ScopeRun, shared: true,
			summary: "Make a folder", in: "NewFolder", query: "path user", out: "200 File The file"},
		{method: post, pattern: "/v1/sandboxes/{name}/files/move", id: "moveFile", serve: ofFiles(h, moveFile), scope: ScopeRun, shared: true,
			summary: "Rename a file or a folder", query: "path user to replace", out: "200 File The file"},
		{method: get, pattern: "/v1/sandboxes/{name}/files/tar", id: "downloadFiles", serve: h.files(h.download), scope: ScopeRun, shared: true,
			summary: "A tree as a tar archive", query: "path user as", headers: "Trailer Sallyport-Error Content-Disposition X-Content-Type-Options", out: "200 application/x-tar An archive; the trailer says why it is not complete"},
		{method: put, pattern: "/v1/sandboxes/{name}/files/tar", id: "uploadFiles", serve: ofFiles(h, upload), scope: ScopeRun, shared: true, maxBody: maxInput,
			summary: "Make the files of a tar archive below a folder", in: "bytes", query: "path user", out: "200 Packed What was made"},
		{method: get, pattern: "/v1/sandboxes/{name}/files/watch", id: "watchFiles", serve: h.files(h.watchFiles), scope: ScopeRun, shared: true,
			summary: "What happens to files, as it happens", query: "path user below", headers: "Content-Disposition X-Content-Type-Options", out: "200 application/x-ndjson Lines of JSON"},
		{method: get, pattern: "/v1/sandboxes/{name}/changes", id: "listChanges", serve: h.changes, scope: ScopeRun, shared: true,
			summary: "What has changed of the files", query: "since", headers: "Content-Disposition X-Content-Type-Options", out: "200 application/x-ndjson Lines of JSON: kind and path"},
		{method: get, pattern: "/v1/sandboxes/{name}/exposures", id: "listExposures", serve: pages(h, func(e client.Exposure) string { return fmt.Sprintf("%05d", e.Port) }, h.exposures), scope: ScopeRead, shared: true, paged: true,
			summary: "Ports of a sandbox that are exposed", out: "200 []Exposure A page of them by port"},
		{method: put, pattern: "/v1/sandboxes/{name}/exposures/{port}", id: "expose", serve: call(h, http.StatusCreated, h.expose), scope: ScopeRun, shared: true, once: true, secret: true,
			summary: "Let requests from the daemon's host reach a port, with a token that is shown this once", note: "A token of before is void. An expose rule has to allow it; docs/sandboxes/inbound.md.", in: "ExposeRequest", out: "201 Exposed It is exposed"},
		{method: del, pattern: "/v1/sandboxes/{name}/exposures/{port}", id: "unexpose", serve: call(h, http.StatusOK, h.unexpose), scope: ScopeRun, shared: true,
			summary: "End an exposure and what goes on by it", out: "204 - It is not exposed any more"},
		{method: get, pattern: "/v1/sandboxes/{name}/ca", id: "sandboxCertificate", serve: h.sandboxRoot, scope: ScopeRead, shared: true,
			summary: "What a sandbox trusts", out: "200 application/x-pem-file A certificate"},
	}, h.memoryRoutes()...)
}

//go:generate go test -run TestDocumentIsTheRoutes -update .

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
		h.writeProblem(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data) // the client is gone if this fails
}
