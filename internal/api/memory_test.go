package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"sallyport/internal/api"
	"sallyport/internal/test/must"
	"sallyport/memory"
	memories "sallyport/memory/client"
	"sallyport/memory/keeper"
	"sallyport/memory/layer"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// recall is an operation on the memory of a sandbox, which must succeed.
func recall[In, Out any](t *testing.T, c *client.Client, operation client.Call[In, Out], in In, name string) Out {
	t.Helper()
	out, err := operation.Do(t.Context(), c, in, name)
	must.OK(t, err)
	return out
}

func TestMemory(t *testing.T) {
	c, _, _ := serve(t, true)
	for _, name := range []string{"a", "b"} {
		_, err := c.Create(t.Context(), name, sandbox.Spec{})
		must.OK(t, err)
	}
	none := client.None{}

	made := recall(t, c, memories.Tool, json.RawMessage(`{"command":"create","path":"/memories/notes/a.md","file_text":"The user likes tea.\n"}`), "a")
	if made.IsError || made.Content != "File created successfully at: /memories/notes/a.md" {
		t.Errorf("created: %+v", made)
	}
	if again := recall(t, c, memories.Tool, json.RawMessage(`{"command":"view","path":"/memories/none"}`), "a"); !again.IsError {
		t.Errorf("viewed what is not there: %+v", again)
	}
	if p := recall(t, c, memories.Prompt, none, "a"); !strings.Contains(p.Text, "# Memories") {
		t.Errorf("prompt: %s", p.Text)
	}
	entry := recall(t, c, memories.Store, keeper.StoreRequest{Text: "The user's name is Ada.", Type: layer.Preference, Metadata: map[string]string{"from": "chat"}, Session: "day 1"}, "a")
	if entry.Path == "" || entry.Type != layer.Preference {
		t.Errorf("stored: %+v", entry)
	}
	if found := recall(t, c, memories.Search, keeper.Question{Query: "tea"}, "a").Found; len(found) == 0 || found[0].Path != "notes/a.md" {
		t.Errorf("found: %+v", found)
	}
	if found := recall(t, c, memories.Search, keeper.Question{Query: "tea"}, "b").Found; len(found) != 0 {
		t.Errorf("another sandbox's was found: %+v", found)
	}
	if found := recall(t, c, memories.Retrieve, keeper.Question{Query: "what is the name of the user", Limit: 3}, "a").Found; len(found) == 0 || found[0].ID != entry.ID || found[0].Score <= 0 {
		t.Errorf("retrieved: %+v", found)
	}
	if text := recall(t, c, memories.FormatForContext, keeper.Question{Query: "name", Budget: 500}, "a").Text; !strings.Contains(text, "> The user's name is Ada.") {
		t.Errorf("for a context: %s", text)
	}
	recall(t, c, memories.AppendTurn, keeper.TurnRequest{Role: "user", Content: "Good morning"}, "a")
	recall(t, c, memories.SetState, keeper.StateRequest{Key: "step", Value: json.RawMessage(`{"n":1}`)}, "a")
	if s := recall(t, c, memories.GetState, keeper.StateRequest{Key: "step"}, "a"); string(s.Value) != `{"n":1}` {
		t.Errorf("state: %s", s.Value)
	}
	// Two that read a value and write what they make of it do not lose each other's.
	read := recall(t, c, memories.GetState, keeper.StateRequest{Key: "step"}, "a")
	recall(t, c, memories.SetState, keeper.StateRequest{Key: "step", Value: json.RawMessage(`{"n":2}`), Digest: read.Digest}, "a")
	recall(t, c, memories.SetState, keeper.StateRequest{Key: "first", Value: json.RawMessage(`1`), Digest: layer.None}, "a")
	for key, digest := range map[string]memory.Digest{"step": read.Digest, "first": layer.None} {
		_, err := memories.SetState.Do(t.Context(), c, keeper.StateRequest{Key: key, Value: json.RawMessage(`3`), Digest: digest}, "a")
		var p *api.Problem
		if !errors.As(err, &p) || p.Status != http.StatusConflict {
			t.Errorf("a value of %s in place of another one: %v", key, err)
		}
	}
	if s := recall(t, c, memories.GetState, keeper.StateRequest{Key: "step"}, "a"); string(s.Value) != `{"n":2}` {
		t.Errorf("state: %s", s.Value)
	}
	recall(t, c, memories.RemoveState, keeper.StateRequest{Key: "first"}, "a")
	if k := recall(t, c, memories.ListState, none, "a"); len(k.Keys) != 1 {
		t.Errorf("keys: %v", k.Keys)
	}
	recall(t, c, memories.RemoveState, keeper.StateRequest{Key: "step"}, "a")
	script := recall(t, c, memories.RegisterScript, layer.Script{Name: "hello.sh", Description: "Say hello", Text: "#!/bin/sh\necho hello\n"}, "a")
	if again := recall(t, c, memories.RegisterScript, layer.Script{Name: "hello.sh", Description: "Say hello", Text: "#!/bin/sh\necho hello\n", Digest: script.Digest}, "a"); again.Digest != script.Digest {
		t.Errorf("registered in its own place: %+v", again)
	}
	for _, digest := range []memory.Digest{layer.None, memory.DigestOf([]byte("another"))} {
		_, err := memories.RegisterScript.Do(t.Context(), c, layer.Script{Name: "hello.sh", Description: "Say bye", Text: "#!/bin/sh\necho bye\n", Digest: digest}, "a")
		var p *api.Problem
		if !errors.As(err, &p) || p.Status != http.StatusConflict {
			t.Errorf("a script in place of another one: %v", err)
		}
	}
	recall(t, c, memories.RecordOutcome, keeper.Outcome{Name: script.Name, OK: true, Note: "said it"}, "a")
	for _, q := range []keeper.Question{{}, {Query: "hello"}} {
		if list := recall(t, c, memories.FindScripts, q, "a"); len(list) != 1 || list[0].LastSuccess.IsZero() {
			t.Errorf("scripts for %q: %+v", q.Query, list)
		}
	}
	run := func(name string) (status int, stderr string, err error) {
		var out strings.Builder
		status, err = memories.RunScript(t.Context(), c, "a", keeper.RunRequest{Name: name}, func(memory.Marks) {}, sandbox.Streams{Stdout: io.Discard, Stderr: &out})
		return status, out.String(), err
	}
	// The engine of this test runs commands on the host, which has no /memory.
	if status, stderr, err := run(script.Name); status != 127 || !strings.Contains(stderr, "/memory/scripts/hello.sh") || err != nil {
		t.Errorf("the script ended with %d, %q, %v", status, stderr, err)
	}
	if list := recall(t, c, memories.FindScripts, keeper.Question{}, "a"); list[0].Note != "exit status 127" || list[0].LastFailure.IsZero() {
		t.Errorf("its outcome: %+v", list[0])
	}
	recall(t, c, memories.Tool, json.RawMessage(`{"command":"insert","path":"/memories/scripts/hello.sh","insert_line":1,"insert_text":"rm -rf /\n"}`), "a")
	for name, want := range map[string]int{script.Name: http.StatusBadRequest, "none.sh": http.StatusNotFound} {
		var p *api.Problem
		if _, _, err := run(name); !errors.As(err, &p) || p.Status != want {
			t.Errorf("%s, changed or not registered, ends with %v, want %d", name, err, want)
		}
	}
	artifact := recall(t, c, memories.PutArtifact, keeper.ArtifactRequest{Data: []byte("a\x00b\xff")}, "a")
	if got := recall(t, c, memories.GetArtifact, keeper.ArtifactRequest{Digest: artifact.Digest}, "a"); string(got.Data) != "a\x00b\xff" || got.Path != "artifacts/"+string(artifact.Digest) {
		t.Errorf("the artifact: %+v", got)
	}
	if p := recall(t, c, memories.CheckpointState, none, "a"); p.Version == 0 || len(p.Files) == 0 {
		t.Errorf("checkpoint: %+v", p)
	}
	recall(t, c, memories.Store, keeper.StoreRequest{Text: "The build took 12 minutes."}, "a")
	var indexed []keeper.Step
	if _, err := memories.Index(t.Context(), c, "a", func(s keeper.Step) { indexed = append(indexed, s) }); err != nil || len(indexed) == 0 || indexed[len(indexed)-1].What != keeper.FilesIndexed {
		t.Errorf("indexed: %+v, %v", indexed, err)
	}
	var steps int
	plan, err := memories.Compact(t.Context(), c, "a", keeper.CompactRequest{OlderThan: "0s", DryRun: true}, func(keeper.Step) { steps++ })
	if err != nil || len(plan.Summaries) != 1 {
		t.Errorf("compacted: %+v, %v", plan, err)
	}
	list := recall(t, c, memories.History, keeper.HistoryRequest{Path: "notes/a.md"}, "a").Commits
	if len(list) != 1 || list[0].Cause.Operation != "api" {
		t.Fatalf("history: %+v", list)
	}
	recall(t, c, memories.Tool, json.RawMessage(`{"command":"str_replace","path":"/memories/notes/a.md","old_str":"tea","new_str":"coffee"}`), "a")
	if d := recall(t, c, memories.Diff, keeper.DiffRequest{From: list[0].Number, Path: "notes"}, "a"); len(d) != 1 || !strings.Contains(d[0].Text, "+The user likes coffee.") {
		t.Errorf("diff: %+v", d)
	}
	if back := recall(t, c, memories.Rollback, keeper.RollbackRequest{To: list[0].Number, Paths: []string{"notes/a.md"}}, "a"); back.Cause.Operation != "rollback" {
		t.Errorf("rolled back: %+v", back)
	}
	out := recall(t, c, memories.Quarantine, keeper.QuarantineRequest{Paths: []string{"notes/a.md"}, Reason: "odd"}, "a")
	if len(out) != 1 || len(recall(t, c, memories.ListQuarantine, none, "a")) != 1 {
		t.Fatalf("in quarantine: %+v", out)
	}
	recall(t, c, memories.Release, keeper.QuarantineID{ID: out[0].ID}, "a")
	out = recall(t, c, memories.Quarantine, keeper.QuarantineRequest{Paths: []string{"notes/a.md"}}, "a")
	recall(t, c, memories.Discard, keeper.QuarantineID{ID: out[0].ID}, "a")
	if v := recall(t, c, memories.Verify, none, "a"); v.Versions == 0 || len(v.Problems) != 0 {
		t.Errorf("verified: %+v", v)
	}

	at := time.Now()
	_, err = c.Snapshot(t.Context(), "a", sandbox.SnapshotSpec{Name: "s"})
	must.OK(t, err)
	recall(t, c, memories.Store, keeper.StoreRequest{Text: "after the snapshot"}, "a")
	if back := recall(t, c, memories.Rollback, keeper.RollbackRequest{Snapshot: "s"}, "a"); back.Number == 0 {
		t.Errorf("rolled back to a snapshot: %+v, of %v", back, at)
	}
	for what, want := range map[string]struct {
		do     func(context.Context) error
		status int
	}{
		"a version that is not there": {func(ctx context.Context) error {
			_, err := memories.Rollback.Do(ctx, c, keeper.RollbackRequest{To: 1 << 40}, "a")
			return err
		}, http.StatusNotFound},
		"a snapshot that is not there": {func(ctx context.Context) error {
			_, err := memories.Rollback.Do(ctx, c, keeper.RollbackRequest{Snapshot: "none"}, "a")
			return err
		}, http.StatusNotFound},
		"no version": {func(ctx context.Context) error {
			_, err := memories.Rollback.Do(ctx, c, keeper.RollbackRequest{}, "a")
			return err
		}, http.StatusBadRequest},
		"a key that is none": {func(ctx context.Context) error {
			_, err := memories.SetState.Do(ctx, c, keeper.StateRequest{Key: "../x", Value: json.RawMessage("1")}, "a")
			return err
		}, http.StatusBadRequest},
		"a key without a value": {func(ctx context.Context) error {
			_, err := memories.GetState.Do(ctx, c, keeper.StateRequest{Key: "nothing"}, "a")
			return err
		}, http.StatusNotFound},
		"a digest that is none": {func(ctx context.Context) error {
			_, err := memories.GetArtifact.Do(ctx, c, keeper.ArtifactRequest{Digest: "../memories.md"}, "a")
			return err
		}, http.StatusBadRequest},
		"another sandbox's artifact": {func(ctx context.Context) error {
			_, err := memories.GetArtifact.Do(ctx, c, keeper.ArtifactRequest{Digest: artifact.Digest}, "b")
			return err
		}, http.StatusNotFound},
		"nobody's memory": {func(ctx context.Context) error {
			_, err := memories.Prompt.Do(ctx, c, none, "nobody")
			return err
		}, http.StatusNotFound},
		"an age that is none": {func(ctx context.Context) error {
			_, err := memories.Compact(ctx, c, "a", keeper.CompactRequest{OlderThan: "old"}, func(keeper.Step) {})
			return err
		}, http.StatusBadRequest},
	} {
		var p *api.Problem
		if err := want.do(t.Context()); !errors.As(err, &p) || p.Status != want.status {
			t.Errorf("%s: %v, want %d", what, err, want.status)
		}
	}
}
