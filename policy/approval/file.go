package approval

import (
	"errors"
	"fmt"

	"sallyport/internal/durable"
)

var errDamaged = errors.New("an entry is damaged")

// read returns the grants in the JSON file at path; one that is not there has
// none.
func read(path string) ([]*Grant, error) {
	var list []*Grant
	if _, err := durable.ReadJSON(path, &list); err != nil {
		return nil, err
	}
	for _, g := range list {
		if g == nil || g.ID == "" || g.Operator.Name == "" || g.Subject.SandboxID == "" || g.Left < 0 || g.Span == Once && g.Left != 1 {
			return nil, fmt.Errorf("reading %s: %w", path, errDamaged)
		}
		if err := g.compile(); err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
	}
	return list, nil
}

// write makes a list the file's. s.mu is held.
func (s *Store) write(list []*Grant) error {
	if list == nil {
		list = []*Grant{}
	}
	return durable.WriteJSON(s.o.Path, list)
}
