package keeper

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"sallyport/memory"
	"sallyport/memory/history"
	"sallyport/memory/layer"
	"sallyport/memory/search"
	"sallyport/memory/tool"
)

// Errors to branch on.
var (
	// ErrBadRequest is of a request that cannot be carried out as it is.
	ErrBadRequest = errors.New("the memory cannot do that")
	// ErrNone is of a key or script that is not there.
	ErrNone = errors.New("the memory has none of that name")
)

// missing is an error with ErrNone if a file is not there.
func missing(err error) error {
	if gone(err) {
		return fmt.Errorf("%w: %w", ErrNone, err)
	}
	return err
}

// Summarizer makes a summary of entries.
type Summarizer = func(context.Context, []layer.Entry) (string, error)

func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// reading is in, with what the sandbox has changed recorded, and returns what do does.
func reading[T any](ctx context.Context, k *Keeper, o memory.Owner, do func(context.Context, *use) (T, error)) (v T, err error) {
	err = k.in(ctx, o, func(ctx context.Context, u *use) error {
		if err := u.begin(ctx); err != nil {
			return err
		}
		v, err = do(ctx, u)
		return err
	})
	return v, err
}

// changing is reading of what changes the memory.
func changing[T any](ctx context.Context, k *Keeper, o memory.Owner, by memory.Operation, do func(context.Context, *use) (T, error)) (v T, err error) {
	err = k.in(ctx, o, func(ctx context.Context, u *use) error {
		return u.change(ctx, by, func() (err error) {
			v, err = do(ctx, u)
			return err
		})
	})
	return v, err
}

// layers are the memory's, for a session of the agent's.
func (u *use) layers(ctx context.Context, session string) *layer.Layers {
	return &layer.Layers{
		Folder: u.folder, Search: index{u}, Session: cmp.Or(session, u.owner.Session),
		Read:  func(path string) ([]byte, error) { return u.read(ctx, path) },
		Trust: func(path string) string { return u.untrusted(ctx, path) },
	}
}

// read returns what the last version has of a file. Only that has been inspected, and is
// what the provenance is of: the sandbox may have written to the file since.
func (u *use) read(ctx context.Context, path string) ([]byte, error) {
	data, err := u.folder.Read(path)
	if err == nil {
		if recorded, err := u.history.Has(ctx, path, memory.DigestOf(data)); recorded || err != nil {
			return data, err
		}
	}
	data, missing := u.history.Contents(ctx, path)
	switch {
	case !errors.Is(missing, history.ErrNotKept):
		return data, missing
	case err == nil:
		err = fmt.Errorf("%q: %w", path, memory.ErrChanged)
	}
	return nil, err
}

// untrusted says why the present contents of a file are not trusted, or "".
func (u *use) untrusted(ctx context.Context, path string) string {
	why, known := u.marks[path]
	if !known {
		why = u.judge(ctx, path)
		u.marks[path] = why
	}
	return why
}

func (u *use) judge(ctx context.Context, path string) string {
	p, err := u.history.Taint(ctx, path)
	if err != nil {
		return "nothing is known of where it is from"
	}
	strange := slices.DeleteFunc(p.Contacted, u.keeper.o.Trusted)
	n := len(strange) + p.MoreContacted
	if n == 0 {
		return ""
	}
	const shown = 3
	text := "learned after contact with " + strings.Join(strange[:min(len(strange), shown)], ", ")
	if more := n - min(len(strange), shown); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Tool carries out a command of the memory tool.
func (k *Keeper) Tool(ctx context.Context, o memory.Owner, input json.RawMessage) (tool.Answer, error) {
	return changing(ctx, k, o, memory.ByAPI, func(ctx context.Context, u *use) (tool.Answer, error) { return tool.Run(ctx, u.folder, input), nil })
}

// Search finds places in the files.
func (k *Keeper) Search(ctx context.Context, o memory.Owner, q Question) (Results[Found], error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) (Results[Found], error) {
		asked := search.Query{Text: q.Query, Limit: q.Limit, Since: q.Since, Until: q.Until}
		if q.Type != "" {
			asked.Types = []string{q.Type}
		}
		if q.Trusted {
			asked.Allow = func(path string) bool { return u.untrusted(ctx, path) == "" }
		}
		hits, err := u.layers(ctx, "").Find(ctx, asked)
		found := []Found{}
		for _, h := range hits {
			found = append(found, Found{h, u.untrusted(ctx, h.Path)})
		}
		return Results[Found]{found, u.unsearched()}, err
	})
}

// unsearched says what a search has not searched, or "".
func (u *use) unsearched() string {
	if u.incomplete == nil {
		return ""
	}
	return strings.ReplaceAll(u.incomplete.Error(), "\n", "; ")
}

// Store adds an entry.
func (k *Keeper) Store(ctx context.Context, o memory.Owner, r StoreRequest) (layer.Entry, error) {
	var e layer.Entry
	err := k.in(ctx, o, func(ctx context.Context, u *use) error {
		err := u.change(ctx, memory.ByAPI, func() (err error) {
			e, err = u.layers(ctx, r.Session).Store(ctx, r.Text, cmp.Or(r.Type, layer.Observation), r.Metadata)
			return err
		})
		e.Untrusted = u.untrusted(ctx, e.Path) // of the version that it is in by now
		return err
	})
	return e, err
}

// Retrieve finds entries and turns, with a score of relevance.
func (k *Keeper) Retrieve(ctx context.Context, o memory.Owner, q Question) (Results[layer.Scored], error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) (Results[layer.Scored], error) {
		found, err := u.layers(ctx, "").Retrieve(ctx, q.Query, cmp.Or(q.Limit, 10), q.options())
		return Results[layer.Scored]{found, u.unsearched()}, err
	})
}

func (q Question) options() layer.RetrieveOptions {
	return layer.RetrieveOptions{Type: q.Type, TrustedOnly: q.Trusted, Since: q.Since, Until: q.Until}
}

// FormatForContext is Retrieve as text for a model.
func (k *Keeper) FormatForContext(ctx context.Context, o memory.Owner, q Question) (Text, error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) (Text, error) {
		text, err := u.layers(ctx, "").FormatForContext(ctx, q.Query, cmp.Or(q.Budget, 2000), q.options())
		return Text{text, u.unsearched()}, err
	})
}

// Prompt is text for a system prompt.
func (k *Keeper) Prompt(ctx context.Context, o memory.Owner) (Text, error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) (Text, error) {
		text, err := u.layers(ctx, "").Prompt(ctx)
		return Text{Text: text}, err
	})
}

// AppendTurn adds a turn to the conversations.
func (k *Keeper) AppendTurn(ctx context.Context, o memory.Owner, r TurnRequest) error {
	_, err := changing(ctx, k, o, memory.ByAPI, func(ctx context.Context, u *use) (struct{}, error) {
		return struct{}{}, u.layers(ctx, r.Session).AppendTurn(ctx, r.Role, r.Content)
	})
	return err
}

// SetState gives a key of the working state a value.
func (k *Keeper) SetState(ctx context.Context, o memory.Owner, r StateRequest) error {
	_, err := changing(ctx, k, o, memory.ByAPI, func(ctx context.Context, u *use) (struct{}, error) {
		return struct{}{}, u.layers(ctx, "").SetState(ctx, r.Key, r.Value, r.Digest)
	})
	return err
}

// State returns the value of a key.
func (k *Keeper) State(ctx context.Context, o memory.Owner, r StateRequest) (StateRequest, error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) (StateRequest, error) {
		value, err := u.layers(ctx, "").State(ctx, r.Key)
		if err != nil {
			return StateRequest{}, missing(err)
		}
		return StateRequest{r.Key, value, memory.DigestOf(value)}, nil
	})
}

// States returns the keys that have values.
func (k *Keeper) States(ctx context.Context, o memory.Owner) (Keys, error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) (Keys, error) {
		keys, err := u.layers(ctx, "").States(ctx)
		return Keys{keys}, err
	})
}

// RemoveState removes a key and its value.
func (k *Keeper) RemoveState(ctx context.Context, o memory.Owner, r StateRequest) error {
	_, err := changing(ctx, k, o, memory.ByAPI, func(ctx context.Context, u *use) (struct{}, error) {
		return struct{}{}, missing(u.layers(ctx, "").RemoveState(ctx, r.Key))
	})
	return err
}

// RegisterScript writes a script and its line in the index of scripts.
func (k *Keeper) RegisterScript(ctx context.Context, o memory.Owner, s layer.Script) (layer.Script, error) {
	err := k.in(ctx, o, func(ctx context.Context, u *use) error {
		l := u.layers(ctx, "")
		err := u.change(ctx, memory.ByAPI, func() (err error) {
			s, err = l.RegisterScript(ctx, s)
			return err
		})
		s = l.Judged(s)
		return err
	})
	return s, err
}

// FindScripts returns the scripts that match a query; all of them for none.
func (k *Keeper) FindScripts(ctx context.Context, o memory.Owner, q Question) ([]layer.Script, error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) ([]layer.Script, error) {
		if q.Query == "" {
			return u.layers(ctx, "").Scripts(ctx)
		}
		return u.layers(ctx, "").FindScript(ctx, q.Query, cmp.Or(q.Limit, 10))
	})
}

// RunScript calls run with the path of a script in the sandbox, and notes the exit status
// that it returns. A script that is not registered, or differs from what was, is not run.
func (k *Keeper) RunScript(ctx context.Context, o memory.Owner, name string, run func(path string) (status int, err error)) (status int, err error) {
	list, err := k.FindScripts(ctx, o, Question{})
	if err != nil {
		return 0, err
	}
	at := slices.IndexFunc(list, func(s layer.Script) bool { return s.Name == name })
	switch {
	case at < 0 || !list[at].Registered:
		return 0, fmt.Errorf("%w: the script %q is not registered", ErrNone, memory.Clip(name, 256))
	case list[at].Changed:
		return 0, fmt.Errorf("%w: the script %q differs from what was registered: read it, and register it again", ErrBadRequest, name)
	}
	if status, err = run("/memory/scripts/" + name); err != nil {
		return status, err
	}
	outcome := Outcome{Name: name, OK: status == 0}
	if status != 0 {
		outcome.Note = fmt.Sprintf("exit status %d", status)
	}
	return status, k.RecordOutcome(ctx, o, outcome)
}

// RecordOutcome notes how a run of a script ended.
func (k *Keeper) RecordOutcome(ctx context.Context, o memory.Owner, r Outcome) error {
	_, err := changing(ctx, k, o, memory.ByAPI, func(ctx context.Context, u *use) (struct{}, error) {
		return struct{}{}, missing(u.layers(ctx, "").RecordOutcome(ctx, r.Name, r.OK, r.Note))
	})
	return err
}

// PutArtifact keeps contents by their digest.
func (k *Keeper) PutArtifact(ctx context.Context, o memory.Owner, r ArtifactRequest) (a layer.Artifact, err error) {
	err = k.in(ctx, o, func(ctx context.Context, u *use) error {
		l := u.layers(ctx, "")
		err := u.change(ctx, memory.ByAPI, func() (err error) {
			a, err = l.PutArtifact(ctx, r.Data)
			return err
		})
		a = l.JudgedArtifact(a)
		return err
	})
	return a, err
}

// GetArtifact returns the contents of a digest.
func (k *Keeper) GetArtifact(ctx context.Context, o memory.Owner, r ArtifactRequest) (layer.Artifact, error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) (layer.Artifact, error) {
		a, err := u.layers(ctx, "").Artifact(ctx, r.Digest)
		return a, missing(err)
	})
}

// Index records what the sandbox has changed, and brings the search index up to date,
// which the next search does otherwise. It tells step how far it is. The end of ctx breaks
// it off: what is indexed by then need not be again, and a search does the rest.
func (k *Keeper) Index(ctx context.Context, o memory.Owner, step func(Step) error) error {
	ctx, progress, cancel := told(ctx, step)
	defer cancel()
	done := Indexed{}
	err := k.in(ctx, o, func(ctx context.Context, u *use) error {
		u.progress = progress(FilesRecorded)
		defer func() { u.progress = nil }()
		if err := u.begin(ctx); err != nil {
			return err
		}
		err := partly(index{u}.Update(ctx, u.folder, progress(FilesIndexed)))
		done.Incomplete = u.unsearched()
		return cmp.Or(err, ctx.Err())
	})
	if err != nil {
		return err
	}
	return step(Step{Index: &done})
}

// partly is the error of an update of the index, if a search does not go on without it.
func partly(err error) error {
	if errors.Is(err, memory.ErrTruncated) || errors.Is(err, search.ErrFull) || errors.Is(err, search.ErrEmbedding) {
		return nil
	}
	return err
}

// told is a context that ends when step fails, and what tells step how far a work is.
func told(ctx context.Context, step func(Step) error) (_ context.Context, progress func(what string) search.Progress, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	return ctx, func(what string) search.Progress {
		return func(done, total int) {
			if err := step(Step{Done: done, Total: total, What: what}); err != nil {
				cancel(err)
			}
		}
	}, func() { cancel(nil) }
}

// Compact makes summaries of old entries. It calls step after each of them.
func (k *Keeper) Compact(ctx context.Context, o memory.Owner, r CompactRequest, step func(Step) error) error {
	age, err := time.ParseDuration(cmp.Or(r.OlderThan, "720h"))
	if err != nil || age < 0 {
		return fmt.Errorf("%w: older_than: %q: write a duration such as 720h", ErrBadRequest, r.OlderThan)
	}
	ctx, progress, cancel := told(ctx, step)
	defer cancel()
	plan, err := changing(ctx, k, o, memory.Compacted, func(ctx context.Context, u *use) (layer.Plan, error) {
		return u.layers(ctx, "").Compact(ctx, layer.CompactOptions{
			Before: time.Now().Add(-age), DryRun: r.DryRun, Summarize: k.o.Summarize, Progress: progress(EntriesCompacted), Written: u.summarized,
		})
	})
	if err != nil {
		return err
	}
	return step(Step{Plan: &plan})
}

// summarized records a summary, whose provenance is that of all its sources.
func (u *use) summarized(ctx context.Context, s layer.Summary) error {
	by := u.by(ctx, memory.Compacted)
	for _, path := range s.Sources {
		p, err := u.history.Taint(ctx, path)
		if err != nil {
			return err
		}
		by.Contacted, by.MoreContacted = append(by.Contacted, p.Contacted...), by.MoreContacted+p.MoreContacted
	}
	_, err := u.history.Record(ctx, u.folder, by)
	return err
}

// Commits returns the newest commits that a request selects.
func (k *Keeper) Commits(ctx context.Context, o memory.Owner, r HistoryRequest) (Commits, error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) (Commits, error) {
		list, err := u.history.Commits(ctx, history.Filter{
			Path: r.Path, Since: r.Since, Until: r.Until, After: r.After, Before: r.Before, Limit: r.Limit, Destination: r.Destination,
		})
		return Commits{list}, err
	})
}

// Diff compares two versions.
func (k *Keeper) Diff(ctx context.Context, o memory.Owner, r DiffRequest) ([]history.FileDiff, error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) ([]history.FileDiff, error) {
		if r.To == 0 {
			last, _, err := u.history.Last(ctx)
			if err != nil {
				return nil, err
			}
			r.To = last.Number
		}
		return u.history.Diff(ctx, r.From, r.To, r.Path)
	})
}

// Rollback makes files what they were at a version. What they are now stays a version.
func (k *Keeper) Rollback(ctx context.Context, o memory.Owner, r RollbackRequest) (c history.Commit, err error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) (history.Commit, error) {
		to, err := u.version(ctx, r)
		if err != nil {
			return c, err
		}
		return made(u.history.Rollback(ctx, u.folder, history.Target{To: to, Paths: r.Paths, LeaveOut: r.LeaveOut}, u.by(ctx, memory.RolledBack)))
	})
}

// version is the number of the version that a request goes back to.
func (u *use) version(ctx context.Context, r RollbackRequest) (uint64, error) {
	switch {
	case r.To > 0:
		return r.To, nil
	case !r.Time.IsZero():
		return u.history.NumberAt(ctx, r.Time)
	case r.Destination != "":
		first, err := u.history.Since(ctx, r.Destination)
		return first - min(first, 1), err
	}
	return 0, fmt.Errorf("%w: say to which version, time or destination", ErrBadRequest)
}

// by is the cause of an operation of the caller's.
func (u *use) by(ctx context.Context, operation memory.Operation) history.Cause {
	return u.cause(ctx, memory.Cause{Operation: operation})
}

// made is the commit of an operation, or the zero Commit if nothing differs.
func made(c *history.Commit, err error) (history.Commit, error) {
	if c == nil {
		return history.Commit{}, err
	}
	return *c, err
}

// Quarantine takes files out of the memory. A file that was there before the contact with
// a destination is then what it was, if that is kept.
func (k *Keeper) Quarantine(ctx context.Context, o memory.Owner, r QuarantineRequest) ([]history.Quarantine, error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) (list []history.Quarantine, err error) {
		paths, reason := r.Paths, r.Reason
		var back history.Target
		switch {
		case r.Destination != "" && len(paths) == 0:
			if paths, back, err = u.learnedAfter(ctx, r.Destination); err != nil {
				return nil, err
			}
			reason = cmp.Or(reason, "learned after contact with "+r.Destination)
		case r.Destination != "" || len(paths) == 0:
			return nil, fmt.Errorf("%w: say which paths, or which destination", ErrBadRequest)
		}
		if err := k.dropIndex(u.store); err != nil {
			return nil, err
		}
		var c history.Commit
		if len(paths) > 0 { // none are all
			if c, err = made(u.history.Quarantine(ctx, u.folder, paths, cmp.Or(reason, "an operator asked"), u.by(ctx, memory.Quarantined))); err != nil {
				return nil, err
			}
		}
		if len(back.Paths) > 0 {
			if _, err := u.history.Rollback(ctx, u.folder, back, u.by(ctx, memory.RolledBack)); err != nil {
				return nil, err
			}
		}
		all, err := u.history.Quarantined(ctx)
		return slices.DeleteFunc(all, func(q history.Quarantine) bool { return q.Commit != c.Number }), err
	})
}

// learnedAfter returns the files with contents that no file had before the sandbox first
// contacted a destination, and what is to be rolled back after they have left: those that
// were there before, and those that have contents of before at another path or mode.
func (u *use) learnedAfter(ctx context.Context, destination string) (paths []string, back history.Target, err error) {
	first, err := u.history.Since(ctx, destination)
	if err != nil {
		return nil, back, err
	}
	back = history.Target{To: first - 1, LeaveOut: true}
	before, err := u.history.At(ctx, back.To)
	if err != nil && !errors.Is(err, history.ErrNoCommit) { // trimmed: nothing is known of it
		return nil, back, err
	}
	last, _, err := u.history.Last(ctx)
	if err != nil {
		return nil, back, err
	}
	now, err := u.history.At(ctx, last.Number)
	if err != nil {
		return nil, back, err
	}
	old := map[memory.Digest]bool{}
	for _, v := range before {
		old[v.Digest] = v.Digest != ""
	}
	for _, path := range slices.Sorted(maps.Keys(now)) {
		v := now[path]
		if v.Kind != memory.KindFile || v.Commit < first {
			continue
		}
		_, was := before[path]
		if !old[v.Digest] {
			paths = append(paths, path)
		}
		if was || old[v.Digest] {
			back.Paths = append(back.Paths, path)
		}
	}
	if len(paths)+len(back.Paths) == 0 {
		err = fmt.Errorf("%w: nothing in the memory was written after contact with %s", ErrBadRequest, destination)
	}
	return paths, back, err
}

// Quarantined lists what is in quarantine.
func (k *Keeper) Quarantined(ctx context.Context, o memory.Owner) ([]history.Quarantine, error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) ([]history.Quarantine, error) { return u.history.Quarantined(ctx) })
}

// Release puts a file back into the memory.
func (k *Keeper) Release(ctx context.Context, o memory.Owner, r QuarantineID) (history.Commit, error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) (history.Commit, error) {
		return made(u.history.Release(ctx, u.folder, r.ID, u.by(ctx, memory.Released)))
	})
}

// Discard removes a file from quarantine for good.
func (k *Keeper) Discard(ctx context.Context, o memory.Owner, r QuarantineID) (history.Commit, error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) (history.Commit, error) {
		return made(u.history.Discard(ctx, r.ID, u.by(ctx, memory.Discarded)))
	})
}

// Checkpoint makes a version and says which files have changed since the checkpoint before.
func (k *Keeper) Checkpoint(ctx context.Context, o memory.Owner) (Checkpoint, error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) (point Checkpoint, err error) {
		before, err := u.history.Commits(ctx, history.Filter{Operation: memory.Checkpoint, Limit: 1})
		if err != nil {
			return point, err
		}
		from := uint64(0)
		if len(before) > 0 {
			from = before[0].Number
		}
		c, err := u.record(ctx, memory.Cause{Operation: memory.Checkpoint})
		if err != nil {
			return point, err
		}
		diffs, err := u.history.Diff(ctx, from, c.Number, "")
		point.Version, point.Files = c.Number, []string{}
		for _, d := range diffs {
			if v := cmp.Or(d.To, d.From); v == nil || v.Kind != memory.KindFolder {
				point.Files = append(point.Files, d.Path)
			}
		}
		return point, err
	})
}

// Verify compares the history with the audit log.
func (k *Keeper) Verify(ctx context.Context, o memory.Owner) (Verified, error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) (v Verified, err error) {
		if err := u.history.Verify(ctx); err != nil {
			v.Problems = append(v.Problems, err.Error())
		}
		recorded, err := k.o.Recorded(ctx, o.ID, 0)
		if err != nil {
			return v, err
		}
		last, _, err := u.history.Last(ctx)
		if err != nil {
			return v, err
		}
		v.Versions = last.Number
		first, newest := uint64(0), uint64(0) // of those that are left, and of those recorded
		oldest, own := uint64(math.MaxUint64), false
		for number := range recorded {
			oldest, newest = min(oldest, number), max(newest, number)
		}
		for after := uint64(0); after < last.Number; {
			list, err := u.history.Commits(ctx, history.Filter{After: after, Before: after + verifyStep + 1, Limit: verifyStep})
			if err != nil {
				return v, err
			}
			after += verifyStep
			for _, c := range slices.Backward(list) { // the oldest first
				digest, ok := recorded[c.Number]
				made := ok
				if !ok {
					if made, err = u.history.Made(ctx, c); err != nil {
						return v, err
					}
				}
				own = own || made
				if ok && digest == c.Digest && c.Trimmed {
					first = c.Number
				}
				delete(recorded, c.Number)
				switch {
				case ok && digest == c.Digest:
					v.Recorded++
				case !ok && oldest < c.Number && c.Number < newest:
					v.Problems = append(v.Problems, fmt.Sprintf("version %d is not in the audit log, and later ones are", c.Number))
				case ok:
					v.Problems = append(v.Problems, fmt.Sprintf("version %d is another one than the audit log has", c.Number))
				case own && !made: // those before may be older than the proofs, or a parent's
					v.Problems = append(v.Problems, fmt.Sprintf("version %d was not made by this installation", c.Number))
				}
			}
		}
		for number := range recorded {
			if number >= first {
				v.Problems = append(v.Problems, fmt.Sprintf("version %d is in the audit log and not in the history", number))
			}
		}
		slices.Sort(v.Problems)
		return v, nil
	})
}

const verifyStep = 100
