package keeper

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"sallyport/memory"
	"sallyport/memory/layer"
	"sallyport/memory/tool"
)

// Tool carries out a command of the memory tool. A call that shows contents begins with
// their marks, and one for a file that has left the memory at once is an error.
func (k *Keeper) Tool(ctx context.Context, o memory.Owner, input json.RawMessage) (tool.Answer, error) {
	return changing(ctx, k, o, memory.ByAPI, func(ctx context.Context, u *use) (tool.Answer, error) {
		return tool.Run(ctx, u.folder, input), nil
	}, func(ctx context.Context, u *use, a *tool.Answer) {
		if err := u.kept(a.Path); err != nil {
			a.Content, a.IsError = err.Error(), true
		} else if a.Shown {
			a.Content = u.mark(ctx, a.Path).InText() + a.Content
		}
	})
}

// SetState gives a key of the working state a value.
func (k *Keeper) SetState(ctx context.Context, o memory.Owner, r StateRequest) error {
	return writing(ctx, k, o, layer.StateFile(r.Key), func(ctx context.Context, u *use) error {
		return u.layers(ctx, "").SetState(ctx, r.Key, r.Value, r.Digest)
	})
}

// State returns the value of a key.
func (k *Keeper) State(ctx context.Context, o memory.Owner, r StateRequest) (StateRequest, error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) (StateRequest, error) {
		value, err := u.layers(ctx, "").State(ctx, r.Key)
		if err != nil {
			return StateRequest{}, missing(err)
		}
		return StateRequest{r.Key, value, memory.DigestOf(value), u.mark(ctx, layer.StateFile(r.Key))}, nil
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
	return writing(ctx, k, o, layer.StateFile(r.Key), func(ctx context.Context, u *use) error {
		return missing(u.layers(ctx, "").RemoveState(ctx, r.Key))
	})
}

// RegisterScript writes a script and its line in the index of scripts.
func (k *Keeper) RegisterScript(ctx context.Context, o memory.Owner, s layer.Script) (layer.Script, error) {
	return changing(ctx, k, o, memory.ByAPI, func(ctx context.Context, u *use) (layer.Script, error) {
		return u.layers(ctx, "").RegisterScript(ctx, s)
	}, func(ctx context.Context, u *use, s *layer.Script) {
		*s = u.layers(ctx, "").Judged(*s)
		s.Quarantined = cmp.Or(u.left[layer.ScriptFile(s.Name)], u.left[layer.ScriptIndex])
	})
}

// FindScripts returns the scripts that match a query; all of them for none.
func (k *Keeper) FindScripts(ctx context.Context, o memory.Owner, q Question) ([]layer.Script, error) {
	return asking(ctx, k, o, q, func(ctx context.Context, u *use) ([]layer.Script, error) {
		if q.Query == "" {
			return u.layers(ctx, "").Scripts(ctx)
		}
		return u.layers(ctx, "").FindScript(ctx, q.Query, cmp.Or(q.Limit, 10))
	})
}

// RunScript calls run with a script and its path in the sandbox, and notes the exit status
// that it returns. A script that is not registered, or differs from what was, is not run.
func (k *Keeper) RunScript(ctx context.Context, o memory.Owner, name string, run func(s layer.Script, path string) (status int, err error)) (status int, err error) {
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
	if status, err = run(list[at], "/memory/"+layer.ScriptFile(name)); err != nil {
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
	return writing(ctx, k, o, layer.ScriptIndex, func(ctx context.Context, u *use) error {
		return missing(u.layers(ctx, "").RecordOutcome(ctx, r.Name, r.OK, r.Note))
	})
}

// PutArtifact keeps contents by their digest.
func (k *Keeper) PutArtifact(ctx context.Context, o memory.Owner, r ArtifactRequest) (layer.Artifact, error) {
	return changing(ctx, k, o, memory.ByAPI, func(ctx context.Context, u *use) (layer.Artifact, error) {
		return u.layers(ctx, "").PutArtifact(ctx, r.Data)
	}, func(ctx context.Context, u *use, a *layer.Artifact) { a.Marks = u.mark(ctx, a.Path) })
}

// GetArtifact returns the contents of a digest.
func (k *Keeper) GetArtifact(ctx context.Context, o memory.Owner, r ArtifactRequest) (layer.Artifact, error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) (layer.Artifact, error) {
		a, err := u.layers(ctx, "").Artifact(ctx, r.Digest)
		a.Marks = u.mark(ctx, a.Path)
		return a, missing(err)
	})
}
