package history

import (
	"context"
	"fmt"

	"sallyport/internal/sqlite"
)

// proven is what a proof of a commit has: nobody without the key can make one, and it is of
// no other sandbox's commit.
func (s *Store) proven(c Commit) string { return fmt.Sprintf("%q %d %s", s.o.Of, c.Number, c.Digest) }

// prove stores with a commit the proof that this Store has made it.
func (r *recording) prove(ctx context.Context) error {
	if r.s.o.Key == nil {
		return nil
	}
	proof, err := r.s.o.Key.Seal([]byte(r.s.proven(r.commit)))
	if err != nil {
		return err
	}
	err = r.exec(ctx, "INSERT OR REPLACE INTO made VALUES(?, ?)", r.commit.Number, proof)
	return err
}

// Made says whether a Store of this sandbox and key has made a commit, as it is now. It says
// no of one that somebody has written to the file, and of a parent's before a fork.
func (s *Store) Made(ctx context.Context, c Commit) (bool, error) {
	digest, err := c.digestOf()
	if err != nil || digest != c.Digest || s.o.Key == nil {
		return false, err
	}
	var proof []byte
	err = sqlite.Each(ctx, s.read, func(scan func(...any) error) error { return scan(&proof) }, "SELECT proof FROM made WHERE number = ?", c.Number)
	if err != nil || proof == nil {
		return false, err
	}
	plain, err := s.o.Key.Open(proof)
	return err == nil && string(plain) == s.proven(c), nil
}
