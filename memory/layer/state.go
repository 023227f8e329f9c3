package layer

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"sallyport/memory"
)

const (
	stateFolder = "state/"
	maxState    = 1 << 20
	// maxNames is how many names of a folder are looked at.
	maxNames = 100_000
)

// StateFile has the value of a key of the working state.
func StateFile(key string) string { return stateFolder + key + ".json" }

func stateFile(key string) (string, error) {
	if !plainName.MatchString(key) {
		return "", invalid("the key %q: a key has 1 to 128 of the characters A-Z a-z 0-9 . _ -", memory.Clip(key, 256))
	}
	return StateFile(key), nil
}

// None is the digest of what is not there, for what takes the place of something.
const None memory.Digest = "none"

// expect refuses to replace contents, which are nil if there are none, that have another
// digest. "" is of any.
func expect(what string, now []byte, want memory.Digest) error {
	is := None
	if now != nil {
		is = memory.DigestOf(now)
	}
	if want != "" && want != is {
		return fmt.Errorf("%s: %w", what, memory.ErrChanged)
	}
	return nil
}

// SetState gives a key of the working state a value: any JSON of at most 1 MiB. Unless old
// is "", the value that it replaces has this digest, or the error is [memory.ErrChanged].
func (l *Layers) SetState(ctx context.Context, key string, value json.RawMessage, old memory.Digest) error {
	name, err := stateFile(key)
	if err != nil {
		return err
	}
	if len(value) > maxState {
		return invalid("the value of %s has %d bytes; the most is %d", key, len(value), maxState)
	}
	if !json.Valid(value) {
		return invalid("the value of %s is not JSON", key)
	}
	return l.change(ctx, name, func(now []byte) ([]byte, error) {
		return value, expect("the value of "+key, now, old)
	})
}

// State returns the value of a key. The error is fs.ErrNotExist if it has none, and
// ErrInvalid if the sandbox has written something else than JSON.
func (l *Layers) State(ctx context.Context, key string) (json.RawMessage, error) {
	name, err := stateFile(key)
	if err != nil {
		return nil, err
	}
	value, err := l.contents(name)
	if err != nil {
		return nil, err
	}
	if len(value) > maxState || !json.Valid(value) {
		return nil, invalid("%s is not JSON of at most %d bytes", name, maxState)
	}
	return value, nil
}

// States returns the keys that have a value, sorted.
func (l *Layers) States(ctx context.Context) ([]string, error) {
	entries, err := l.scan(stateFolder)
	if err != nil {
		return nil, err
	}
	keys := []string{}
	for _, e := range entries {
		key, ok := strings.CutSuffix(strings.TrimPrefix(e.Path, stateFolder), ".json")
		if ok && e.Kind == memory.KindFile && plainName.MatchString(key) {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// RemoveState removes the value of a key. The error is fs.ErrNotExist if it has none.
func (l *Layers) RemoveState(ctx context.Context, key string) error {
	name, err := stateFile(key)
	if err != nil {
		return err
	}
	return l.Folder.Remove(name)
}
