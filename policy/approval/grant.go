package approval

import (
	"cmp"
	"slices"
)

// covering finds a grant for what is asked, one for it alone first. s.mu is held.
func (s *Store) covering(q Question) (found *Grant) {
	now := s.o.Now()
	for _, g := range s.grants {
		if !now.Before(g.Until) || !g.covers(q.Subject) {
			continue
		}
		if g.Span != Once {
			found = cmp.Or(found, g)
		} else if g.ID == q.ID || !g.Held && q.ID == "" {
			return g
		}
	}
	return found
}

// take uses a grant, on disk first where uses are counted. s.mu is held.
func (s *Store) take(g *Grant) error {
	switch g.Left {
	case 0:
		return nil
	case 1:
		err := s.keep(func(have *Grant) bool { return have != g })
		s.change()
		return err
	}
	less := *g
	less.Left--
	next := slices.Clone(s.grants)
	next[slices.Index(next, g)] = &less
	if err := s.write(next); err != nil {
		return err
	}
	s.grants = next
	s.change()
	return nil
}

// keep drops the other grants, on disk first. s.mu is held.
func (s *Store) keep(which func(*Grant) bool) error {
	next := slices.DeleteFunc(slices.Clone(s.grants), func(g *Grant) bool { return !which(g) })
	if len(next) == len(s.grants) {
		return nil
	}
	if err := s.write(next); err != nil {
		return err
	}
	s.grants = next
	return nil
}
