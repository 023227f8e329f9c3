package keeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"sallyport/memory"
	"sallyport/memory/history"
	"sallyport/memory/layer"
	"sallyport/memory/search"
)

// Errors to branch on.
var (
	// ErrBadRequest is of a request that cannot be carried out as it is.
	ErrBadRequest = errors.New("the memory cannot do that")
	// ErrNone is of a key or script that is not there.
	ErrNone = errors.New("the memory has none of that name")
	// ErrQuarantined is of what was written and has left the memory at once.
	ErrQuarantined = errors.New("it is in quarantine")
)

func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// missing is an error with ErrNone if a file is not there.
func missing(err error) error {
	if gone(err) {
		return fmt.Errorf("%w: %w", ErrNone, err)
	}
	return err
}

// kept is an error if what was written to a file has left the memory.
func (u *use) kept(path string) error {
	if why := u.left[path]; why != "" {
		return fmt.Errorf("%w: %s: %s", ErrQuarantined, path, why)
	}
	return nil
}

// reading is in, with what the sandbox has changed recorded, and returns what do does.
func reading[T any](ctx context.Context, k *Keeper, o memory.Owner, do func(context.Context, *use) (T, error)) (T, error) {
	return asking(ctx, k, o, Question{}, do)
}

// asking is reading of a question, for which an Index just before has looked.
func asking[T any](ctx context.Context, k *Keeper, o memory.Owner, q Question, do func(context.Context, *use) (T, error)) (v T, err error) {
	err = k.in(ctx, o, func(ctx context.Context, u *use) error {
		if q.Look == "" || q.Look != u.looked {
			u.looked = ""
			if err := u.begin(ctx); err != nil {
				return err
			}
		}
		v, err = do(ctx, u)
		return err
	})
	return v, err
}

// changing is reading of what changes the memory. done, if not nil, completes what do
// returns once it is recorded.
func changing[T any](ctx context.Context, k *Keeper, o memory.Owner, by memory.Operation, do func(context.Context, *use) (T, error), done func(context.Context, *use, *T)) (v T, err error) {
	err = k.in(ctx, o, func(ctx context.Context, u *use) error {
		err := u.change(ctx, by, func() (err error) {
			v, err = do(ctx, u)
			return err
		})
		if done != nil && err == nil {
			done(ctx, u, &v)
		}
		return err
	})
	return v, err
}

// writing is changing of a file of the memory, which is an error if it has not stayed there.
func writing(ctx context.Context, k *Keeper, o memory.Owner, path string, do func(context.Context, *use) error) error {
	return k.in(ctx, o, func(ctx context.Context, u *use) error {
		if err := u.change(ctx, memory.ByAPI, func() error { return do(ctx, u) }); err != nil {
			return err
		}
		return u.kept(path)
	})
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

// mark is the marks of a file, for whatever shows it: they are of its present contents.
func (u *use) mark(ctx context.Context, path string) memory.Marks {
	m := memory.Marks{Quarantined: u.left[path]}
	if there, err := u.folder.Lstat(path); m.Quarantined == "" || err == nil && there.Mode().IsRegular() {
		m.Untrusted = u.untrusted(ctx, path)
	}
	return m
}

// untrusted says why the present contents of a file are not trusted, or "".
func (u *use) untrusted(ctx context.Context, path string) string {
	why, known := u.marks[path]
	if !known {
		why = u.judge(u.history.Taint(ctx, path, 0))
		u.marks[path] = why
	}
	return why
}

// judge says why what comes from somewhere is not trusted, or "".
func (u *use) judge(p history.Provenance, err error) string {
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
