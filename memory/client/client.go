// Package client asks a daemon for what a sandbox remembers. Its operations have the names
// that they have in the API and on the command line.
package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"

	"sallyport/memory"
	"sallyport/memory/history"
	"sallyport/memory/keeper"
	"sallyport/memory/layer"
	"sallyport/memory/tool"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// Operations on the memory of a sandbox. Do takes the sandbox's name last.
var (
	Tool             = operation[json.RawMessage, tool.Answer]("")
	Prompt           = operation[client.None, keeper.Text]("/prompt")
	Search           = operation[keeper.Question, keeper.Results[keeper.Found]]("/search")
	Store            = operation[keeper.StoreRequest, layer.Entry]("/store")
	Retrieve         = operation[keeper.Question, keeper.Results[layer.Scored]]("/retrieve")
	FormatForContext = operation[keeper.Question, keeper.Text]("/format_for_context")
	AppendTurn       = operation[keeper.TurnRequest, client.None]("/append_turn")
	GetState         = operation[keeper.StateRequest, keeper.StateRequest]("/get_state")
	SetState         = operation[keeper.StateRequest, client.None]("/set_state")
	ListState        = operation[client.None, keeper.Keys]("/list_state")
	RemoveState      = operation[keeper.StateRequest, client.None]("/remove_state")
	RegisterScript   = operation[layer.Script, layer.Script]("/register_script")
	FindScripts      = operation[keeper.Question, []layer.Script]("/find_scripts")
	RecordOutcome    = operation[keeper.Outcome, client.None]("/record_outcome")
	PutArtifact      = operation[keeper.ArtifactRequest, layer.Artifact]("/put_artifact")
	GetArtifact      = operation[keeper.ArtifactRequest, layer.Artifact]("/get_artifact")
	CheckpointState  = operation[client.None, keeper.Checkpoint]("/checkpoint_state")
	History          = operation[keeper.HistoryRequest, keeper.Commits]("/history")
	Diff             = operation[keeper.DiffRequest, []keeper.FileDiff]("/diff")
	Rollback         = operation[keeper.RollbackRequest, history.Commit]("/rollback")
	Quarantine       = operation[keeper.QuarantineRequest, []history.Quarantine]("/quarantine")
	ListQuarantine   = operation[client.None, []history.Quarantine]("/list_quarantine")
	Release          = operation[keeper.QuarantineID, history.Commit]("/release")
	Discard          = operation[keeper.QuarantineID, history.Commit]("/discard")
	Verify           = operation[client.None, keeper.Verified]("/verify")
)

func operation[In, Out any](name string) client.Call[In, Out] {
	return client.Call[In, Out]{Method: http.MethodPost, Path: "/v1/sandboxes/{name}/memory" + name}
}

// Compact makes old entries of a sandbox's memory summaries. It tells step how far it is;
// the end of ctx breaks it off.
func Compact(ctx context.Context, c *client.Client, name string, r keeper.CompactRequest, step func(keeper.Step)) (plan layer.Plan, err error) {
	last, err := steps(ctx, c, name, "/compact", r, step)
	if last.Plan != nil {
		plan = *last.Plan
	}
	return plan, err
}

// Index brings the search index of a sandbox's memory up to date, which the next question
// does otherwise. It tells step how far it is; the end of ctx breaks it off.
func Index(ctx context.Context, c *client.Client, name string, step func(keeper.Step)) (done keeper.Indexed, err error) {
	last, err := steps(ctx, c, name, "/index", client.None{}, step)
	if last.Index != nil {
		done = *last.Index
	}
	return done, err
}

// steps asks for a long operation, and returns the last of its steps.
func steps(ctx context.Context, c *client.Client, name, operation string, in any, step func(keeper.Step)) (last keeper.Step, err error) {
	err = client.PostLines(ctx, c, "/v1/sandboxes/"+url.PathEscape(name)+"/memory"+operation, in, func(s struct {
		keeper.Step
		Problem *client.Problem `json:"problem"`
	}) error {
		switch {
		case s.Problem != nil:
			return s.Problem
		case s.Plan != nil || s.Index != nil:
			last = s.Step
		default:
			step(s.Step)
		}
		return nil
	})
	if err == nil && last.Plan == nil && last.Index == nil {
		err = errors.Join(ctx.Err(), io.ErrUnexpectedEOF)
	}
	return last, err
}

// RunScript runs a script of a sandbox's memory in the sandbox, tells marked first what marks
// it has, writes its output to the streams, and notes how that ended. It returns the script's exit status. A script that is
// not registered, or differs from what was, is not run; the end of ctx ends it.
func RunScript(ctx context.Context, c *client.Client, name string, r keeper.RunRequest, marked func(memory.Marks), streams sandbox.Streams) (status int, err error) {
	ended := false
	err = client.PostLines(ctx, c, "/v1/sandboxes/"+url.PathEscape(name)+"/memory/run_script", r, func(s struct {
		keeper.RunStep
		Problem *client.Problem `json:"problem"`
	}) error {
		switch {
		case s.Problem != nil:
			return s.Problem
		case s.Marks != memory.Marks{}:
			marked(s.Marks)
		case s.Status != nil:
			status, ended = *s.Status, true
		case len(s.Stderr) > 0:
			_, err := streams.Stderr.Write(s.Stderr)
			return err
		default:
			_, err := streams.Stdout.Write(s.Stdout)
			return err
		}
		return nil
	})
	if err == nil && !ended {
		err = errors.Join(ctx.Err(), io.ErrUnexpectedEOF)
	}
	return status, err
}
