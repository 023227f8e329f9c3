package keeper_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/memory"
	"sallyport/memory/keeper"
	"sallyport/memory/layer"
)

const runs = "#!/bin/sh\ntrue\n"

// Whatever shows or writes a file says why it is not trusted.
func TestWhatIsShownHasItsMark(t *testing.T) {
	for contacted, want := range map[string]string{"good.example": "", "evil.example": "learned after contact with evil.example"} {
		t.Run(contacted, func(t *testing.T) {
			r := newRig(t)
			ctx := t.Context()
			must.OK(t, r.Record(ctx, r.o, memory.Cause{Operation: memory.Found}))
			first := r.commits()[0].Number
			contact := func() {
				r.mu.Lock()
				r.contacted = []string{contacted}
				r.mu.Unlock()
			}
			is := func(what string, got memory.Marks) {
				t.Helper()
				if got.Untrusted != want || got.Quarantined != "" {
					t.Errorf("%s: %+v, want %q", what, got, want)
				}
			}
			contact()
			is("store", value(r.Store(ctx, r.o, keeper.StoreRequest{Text: "The build took 12 minutes."}))(t).Marks)
			contact()
			is("register_script", value(r.RegisterScript(ctx, r.o, layer.Script{Name: "a.sh", Description: "Does nothing", Text: runs}))(t).Marks)
			contact()
			artifact := value(r.PutArtifact(ctx, r.o, keeper.ArtifactRequest{Data: []byte("a result")}))(t)
			is("put_artifact", artifact.Marks)
			is("get_artifact", value(r.GetArtifact(ctx, r.o, keeper.ArtifactRequest{Digest: artifact.Digest}))(t).Marks)
			contact()
			must.OK(t, r.SetState(ctx, r.o, keeper.StateRequest{Key: "step", Value: json.RawMessage("1")}))
			is("get_state", value(r.State(ctx, r.o, keeper.StateRequest{Key: "step"}))(t).Marks)
			is("history", value(r.Commits(ctx, r.o, keeper.HistoryRequest{Path: "state/step.json"}))(t).Marks)
			is("search", value(r.Search(ctx, r.o, keeper.Question{Query: "minutes"}))(t).Found[0].Marks)
			is("find_scripts", value(r.FindScripts(ctx, r.o, keeper.Question{}))(t)[0].Marks)
			diffs := value(r.Diff(ctx, r.o, keeper.DiffRequest{From: first, Path: "state/step.json"}))(t)
			is("diff", diffs[0].Marks)
			value(r.RunScript(ctx, r.o, "a.sh", func(s layer.Script, _ string) (int, error) {
				is("run_script", s.Marks)
				return 0, nil
			}))(t)
			// The tool's answers are the contract's, but for text that is not trusted.
			line := ""
			if want != "" {
				line = "[untrusted: " + want + "]\n"
			}
			for _, tt := range [][2]string{ // in this order
				{`{"command": "view", "path": "/memories/state/step.json"}`, line + "Here's the content of /memories/state/step.json with line numbers:\n     1\t1"},
				{`{"command": "str_replace", "path": "/memories/scripts/a.sh", "old_str": "true", "new_str": "false"}`, line + "The memory file has been edited."},
				{`{"command": "create", "path": "/memories/new.md", "file_text": "new"}`, "File created successfully at: /memories/new.md"},
				{`{"command": "insert", "path": "/memories/new.md", "insert_line": 0, "insert_text": "newer"}`, "The file /memories/new.md has been edited."},
				{`{"command": "view", "path": "/memories"}`, "Here're the files and directories"},
				{`{"command": "view", "path": "/memories/memories.md"}`, "Here's the content of /memories/memories.md"},
				{`{"command": "str_replace", "path": "/memories/memories.md", "old_str": "no such text", "new_str": "false"}`, "No replacement was performed"},
			} {
				if got := value(r.Tool(ctx, r.o, json.RawMessage(tt[0])))(t); !strings.HasPrefix(got.Content, tt[1]) {
					t.Errorf("%s: %q, want %q", tt[0], got.Content, tt[1])
				}
			}
			time.Sleep(time.Second) // entries have whole seconds
			must.OK(t, r.Compact(ctx, r.o, keeper.CompactRequest{OlderThan: "0s", DryRun: true}, func(s keeper.Step) error {
				if s.Plan != nil {
					is("compact", s.Plan.Summaries[0].Marks)
				}
				return nil
			}))
		})
	}
}

// A diff has the mark of the version that it shows, and not of a later one.
func TestDiffHasTheMarkOfItsVersion(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	r.writes("a.md", "one\n", "good.example")
	must.OK(t, r.Record(ctx, r.o, memory.Cause{Operation: memory.Found}))
	r.writes("a.md", "two\n", "evil.example")
	must.OK(t, r.Record(ctx, r.o, memory.Cause{Operation: memory.Found}))
	value(r.Quarantine(ctx, r.o, keeper.QuarantineRequest{Paths: []string{"a.md"}, Reason: "odd"}))(t)
	for to, want := range map[uint64]memory.Marks{
		1: {}, 2: {Untrusted: "learned after contact with evil.example"}, 3: {Untrusted: "learned after contact with evil.example", Quarantined: "odd"},
	} {
		from := uint64(0)
		if to == 3 {
			from = 2
		}
		if d := value(r.Diff(ctx, r.o, keeper.DiffRequest{From: from, To: to, Path: "a.md"}))(t); len(d) != 1 || d[0].Marks != want {
			t.Errorf("to version %d: %+v, want %+v", to, d, want)
		}
	}
	if c := value(r.Commits(ctx, r.o, keeper.HistoryRequest{Path: "a.md"}))(t); c.Quarantined != "odd" {
		t.Errorf("history: %+v", c.Marks)
	}
}

// A write that holds a secret is not said to be there.
func TestWhatIsWrittenIsInQuarantine(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	const why = "secret: it holds the credential api"
	text := "The password is " + secret + "."
	if e := value(r.Store(ctx, r.o, keeper.StoreRequest{Text: text}))(t); e.Quarantined != why || e.Untrusted != "" {
		t.Errorf("store: %+v", e.Marks)
	}
	if s := value(r.RegisterScript(ctx, r.o, layer.Script{Name: "a.sh", Description: "Logs in", Text: runs + text}))(t); s.Quarantined != why {
		t.Errorf("register_script: %+v", s.Marks)
	}
	if a := value(r.PutArtifact(ctx, r.o, keeper.ArtifactRequest{Data: []byte(text)}))(t); a.Quarantined != why {
		t.Errorf("put_artifact: %+v", a.Marks)
	}
	for what, err := range map[string]error{
		"set_state":      r.SetState(ctx, r.o, keeper.StateRequest{Key: "k", Value: json.RawMessage(fmt.Sprintf("%q", text))}),
		"append_turn":    r.AppendTurn(ctx, r.o, keeper.TurnRequest{Role: "user", Content: text}),
		"record_outcome": r.RecordOutcome(ctx, r.o, keeper.Outcome{Name: "a.sh", Note: text}),
	} {
		if !errors.Is(err, keeper.ErrQuarantined) || !strings.Contains(err.Error(), why) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", what, err)
		}
	}
	input := fmt.Sprintf(`{"command": "create", "path": "/memories/a.md", "file_text": %q}`, text)
	if a := value(r.Tool(ctx, r.o, json.RawMessage(input)))(t); !a.IsError || a.Content != "it is in quarantine: a.md: "+why {
		t.Errorf("the tool: %+v", a)
	}
	// The sandbox's writes of before are nothing of the operation's.
	r.writes("state/k.json", text)
	must.OK(t, r.SetState(ctx, r.o, keeper.StateRequest{Key: "k", Value: json.RawMessage("1")}))
	if got := value(r.State(ctx, r.o, keeper.StateRequest{Key: "k"}))(t); string(got.Value) != "1" || got.Quarantined != "" {
		t.Errorf("get_state: %+v", got)
	}
}
