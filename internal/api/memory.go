package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"

	"sallyport/memory"
	"sallyport/memory/history"
	"sallyport/memory/keeper"
	"sallyport/memory/layer"
	"sallyport/sandbox"
	"sallyport/sandbox/manager"
)

// memoryRoutes are the operations on the memory of a sandbox. Each is a POST of JSON whose
// name is the operation's, as in the Go client and on the command line.
func (h *handler) memoryRoutes() []route {
	const name = "/v1/sandboxes/{name}/memory"
	operation := func(operation, id, in, out, summary string, serve http.HandlerFunc, readOnly bool) route {
		return route{method: http.MethodPost, pattern: name + operation, id: id, serve: serve, scope: ScopeRun, shared: true, readOnly: readOnly, maxBody: maxMemory,
			summary: summary, in: in, out: out}
	}
	const reads, changes = true, false
	return []route{
		operation("", "memoryTool", "MemoryToolInput", "200 MemoryToolAnswer What the tool answers", "Carry out a command of the model's memory tool (memory_20250818), whose input is the body as it is", ofMemory(h, (*keeper.Keeper).Tool), changes),
		operation("/prompt", "memoryPrompt", "", "200 MemoryText The text", "The core of the memory, and what to remember, for a system prompt", ofMemory(h, alone((*keeper.Keeper).Prompt)), reads),
		operation("/index", "indexMemory", "", "200 application/x-ndjson Lines of JSON, each a MemoryStep; the last has the index or the problem", "Bring the search index up to date, as the next search does otherwise", streamMemory(h, indexMemory), reads),
		operation("/search", "searchMemory", "MemoryQuestion", "200 MemoryPlaces The places, the best first", "Find places in the files", ofMemory(h, (*keeper.Keeper).Search), reads),
		operation("/store", "storeMemory", "MemoryStore", "200 MemoryEntry The entry", "Remember an observation", ofMemory(h, (*keeper.Keeper).Store), changes),
		operation("/retrieve", "retrieveMemory", "MemoryQuestion", "200 MemoryEntries The entries, the best first", "Find entries and turns, with a score of relevance", ofMemory(h, (*keeper.Keeper).Retrieve), reads),
		operation("/format_for_context", "formatMemory", "MemoryQuestion", "200 MemoryText The text", "Retrieve, as text for a model's context within a budget", ofMemory(h, (*keeper.Keeper).FormatForContext), reads),
		operation("/append_turn", "appendMemoryTurn", "MemoryTurn", "204 - It is added", "Add a turn to the conversations", ofMemory(h, nothing((*keeper.Keeper).AppendTurn)), changes),
		operation("/get_state", "getMemoryState", "MemoryState", "200 MemoryState The key and its value", "The value of a key of the working state", ofMemory(h, (*keeper.Keeper).State), reads),
		operation("/set_state", "setMemoryState", "MemoryState", "204 - It is set", "Give a key of the working state a value", ofMemory(h, nothing((*keeper.Keeper).SetState)), changes),
		operation("/list_state", "listMemoryState", "", "200 MemoryKeys The keys", "The keys of the working state", ofMemory(h, alone((*keeper.Keeper).States)), reads),
		operation("/remove_state", "removeMemoryState", "MemoryState", "204 - It is removed", "Remove a key of the working state", ofMemory(h, nothing((*keeper.Keeper).RemoveState)), changes),
		operation("/register_script", "registerScript", "MemoryScript", "200 MemoryScript The script", "Write a script, and its place in the index of scripts", ofMemory(h, (*keeper.Keeper).RegisterScript), changes),
		operation("/find_scripts", "findScripts", "MemoryQuestion", "200 []MemoryScript The scripts", "Find scripts; without a query all of them", ofMemory(h, (*keeper.Keeper).FindScripts), reads),
		operation("/run_script", "runScript", "MemoryRun", "200 application/x-ndjson Lines of JSON, each a MemoryRunStep; the last has the exit status or the problem", "Run a registered script in the sandbox, and note how that ended", forMemory(h, h.runScript), changes),
		operation("/record_outcome", "recordScriptOutcome", "MemoryScriptOutcome", "204 - It is noted", "Note how a run of a script ended", ofMemory(h, nothing((*keeper.Keeper).RecordOutcome)), changes),
		operation("/put_artifact", "putMemoryArtifact", "MemoryArtifactRequest", "200 MemoryArtifact The artifact, without its contents", "Keep a result by its digest", ofMemory(h, (*keeper.Keeper).PutArtifact), changes),
		operation("/get_artifact", "getMemoryArtifact", "MemoryArtifactRequest", "200 MemoryArtifact The artifact", "A result by its digest", ofMemory(h, (*keeper.Keeper).GetArtifact), reads),
		operation("/checkpoint_state", "checkpointMemory", "", "200 MemoryCheckpoint The version and the files", "Make a checkpoint, and say which files have changed since the one before", ofMemory(h, alone((*keeper.Keeper).Checkpoint)), changes),
		operation("/compact", "compactMemory", "MemoryCompact", "200 application/x-ndjson Lines of JSON, each a MemoryStep; the last has the plan or the problem", "Make old entries summaries; their originals stay in the history", streamMemory(h, (*keeper.Keeper).Compact), changes),
		operation("/history", "memoryHistory", "MemoryHistory", "200 MemoryCommits The newest commits that fit", "What has changed, when and by what", ofMemory(h, (*keeper.Keeper).Commits), reads),
		operation("/diff", "diffMemory", "MemoryDiff", "200 []MemoryFileDiff The files that differ", "How two versions differ", ofMemory(h, (*keeper.Keeper).Diff), reads),
		operation("/rollback", "rollbackMemory", "MemoryRollback", "200 MemoryCommit The new version", "Make files what they were; what they are stays in the history", ofMemory(h, h.rollbackMemory), changes),
		operation("/quarantine", "quarantineMemory", "MemoryQuarantine", "200 []MemoryQuarantined What was taken out", "Take files out of the memory: by path, or all that was learned after contact with a destination", ofMemory(h, (*keeper.Keeper).Quarantine), changes),
		operation("/list_quarantine", "listMemoryQuarantine", "", "200 []MemoryQuarantined What is there", "What is in quarantine", ofMemory(h, alone((*keeper.Keeper).Quarantined)), reads),
		operation("/release", "releaseMemory", "MemoryQuarantineID", "200 MemoryCommit The new version", "Put a file from quarantine back", ofMemory(h, (*keeper.Keeper).Release), changes),
		operation("/discard", "discardMemory", "MemoryQuarantineID", "200 MemoryCommit The new version", "Remove a file from quarantine for good", ofMemory(h, (*keeper.Keeper).Discard), changes),
		operation("/verify", "verifyMemory", "", "200 MemoryVerified What was found", "Compare the history with the audit log", ofMemory(h, alone((*keeper.Keeper).Verify)), reads),
	}
}

// maxMemory bounds the body of a request, in bytes: a file of the memory, as JSON.
const maxMemory = 40 << 20

// ofMemory is [call] for an operation on the memory of the sandbox that a request names.
func ofMemory[In, Out any](h *handler, do func(*keeper.Keeper, context.Context, memory.Owner, In) (Out, error)) http.HandlerFunc {
	return call(h, http.StatusOK, func(r *http.Request, in In) (out Out, err error) {
		o, err := h.memoryOwner(r)
		if err != nil {
			return out, err
		}
		return do(h.opt.Memory, r.Context(), o, in)
	})
}

func (h *handler) memoryOwner(r *http.Request) (memory.Owner, error) {
	i, err := h.sandbox(r)
	return manager.MemoryOwner(i), err
}

// nothing is an operation that answers nothing.
func nothing[In any](do func(*keeper.Keeper, context.Context, memory.Owner, In) error) func(*keeper.Keeper, context.Context, memory.Owner, In) (none, error) {
	return func(k *keeper.Keeper, ctx context.Context, o memory.Owner, in In) (none, error) {
		return none{}, do(k, ctx, o, in)
	}
}

// alone is an operation that asks for nothing more.
func alone[Out any](do func(*keeper.Keeper, context.Context, memory.Owner) (Out, error)) func(*keeper.Keeper, context.Context, memory.Owner, none) (Out, error) {
	return func(k *keeper.Keeper, ctx context.Context, o memory.Owner, _ none) (Out, error) { return do(k, ctx, o) }
}

// rollbackMemory also knows when snapshots were made.
func (h *handler) rollbackMemory(k *keeper.Keeper, ctx context.Context, o memory.Owner, in keeper.RollbackRequest) (history.Commit, error) {
	if in.Snapshot != "" {
		list, err := h.opt.Manager.Snapshots(ctx, o.Name)
		if err != nil {
			return history.Commit{}, err
		}
		at := slices.IndexFunc(list, func(s sandbox.Snapshot) bool { return s.Name == in.Snapshot })
		if at < 0 {
			return history.Commit{}, fmt.Errorf("%w: %q of sandbox %s: `sallyport sandbox snapshots %s` shows those there are", sandbox.ErrNoSnapshot, in.Snapshot, o.Name, o.Name)
		}
		in.Time = list[at].Created
	}
	return k.Rollback(ctx, o, in)
}

// forMemory is a handler of a request about the memory of the sandbox that it names, which
// answers in its own way.
func forMemory[In any](h *handler, do func(w http.ResponseWriter, r *http.Request, o memory.Owner, in In)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in In
		var err error
		if _, empty := any(in).(none); !empty {
			err = decode(r, &in)
		}
		var o memory.Owner
		if err == nil {
			o, err = h.memoryOwner(r)
		}
		if err != nil {
			h.writeProblem(w, r, err)
			return
		}
		do(w, r, o, in)
	}
}

// runScript streams lines of JSON: what the script writes, and at the end its exit status,
// or the problem that there was. The script ends with the request.
func (h *handler) runScript(w http.ResponseWriter, r *http.Request, o memory.Owner, in keeper.RunRequest) {
	type line struct {
		keeper.RunStep
		Problem *Problem `json:"problem,omitempty"`
	}
	streamSteps(h, w, r, func(p *Problem) line { return line{Problem: p} }, func(say func(line) error) error {
		var one sync.Mutex
		stream := func(step func([]byte) keeper.RunStep) io.Writer {
			return writing(func(data []byte) error {
				one.Lock()
				defer one.Unlock()
				return say(line{RunStep: step(data)})
			})
		}
		status, err := h.opt.Memory.RunScript(r.Context(), o, in.Name, func(s layer.Script, path string) (int, error) {
			if s.Marks != (memory.Marks{}) {
				if err := say(line{RunStep: keeper.RunStep{Marks: s.Marks}}); err != nil {
					return 0, err
				}
			}
			return h.opt.Manager.Exec(r.Context(), o.Name, sandbox.CommandSpec{Args: append([]string{path}, in.Args...)}, sandbox.Streams{
				Stdout: stream(func(data []byte) keeper.RunStep { return keeper.RunStep{Stdout: data} }),
				Stderr: stream(func(data []byte) keeper.RunStep { return keeper.RunStep{Stderr: data} }),
			})
		})
		if err != nil {
			return err
		}
		return say(line{RunStep: keeper.RunStep{Status: &status}})
	})
}

// writing is an io.Writer that takes all or fails.
type writing func([]byte) error

func (w writing) Write(data []byte) (int, error) {
	if err := w(data); err != nil {
		return 0, err
	}
	return len(data), nil
}

func indexMemory(k *keeper.Keeper, ctx context.Context, o memory.Owner, _ none, step func(keeper.Step) error) error {
	return k.Index(ctx, o, step)
}

// streamMemory streams lines of JSON: how far a long operation is, and at the end what it
// came to, or the problem that there was. It ends with the request.
func streamMemory[In any](h *handler, do func(*keeper.Keeper, context.Context, memory.Owner, In, func(keeper.Step) error) error) http.HandlerFunc {
	type line struct {
		keeper.Step
		Problem *Problem `json:"problem,omitempty"`
	}
	return forMemory(h, func(w http.ResponseWriter, r *http.Request, o memory.Owner, in In) {
		streamSteps(h, w, r, func(p *Problem) line { return line{Problem: p} }, func(say func(line) error) error {
			return do(h.opt.Memory, r.Context(), o, in, func(s keeper.Step) error { return say(line{Step: s}) })
		})
	})
}
