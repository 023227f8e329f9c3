package approval

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"

	"sallyport/internal/durable"
)

var errDamaged = errors.New("an entry is damaged")

// read returns the grants in the JSON file at path; one that is not there has
// none.
func read(path string) ([]*Grant, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []*Grant
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, err
	}
	for _, g := range list {
		if g == nil || g.ID == "" || g.Operator.Name == "" || g.Subject.SandboxID == "" || g.Left < 0 || g.Span == Once && g.Left != 1 {
			return nil, errDamaged
		}
		if err := g.compile(); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// write makes a list the file's. s.mu is held.
func (s *Store) write(list []*Grant) error {
	if list == nil {
		list = []*Grant{}
	}
	raw, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return err
	}
	return durable.WriteFile(s.o.Path, append(raw, '\n'), 0o600)
}
