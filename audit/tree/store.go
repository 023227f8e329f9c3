package tree

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sort"

	"golang.org/x/mod/sumdb/tlog"
	"golang.org/x/sys/unix"

	"sallyport/internal/durable"
)

// Store is the tree on disk: one file of hashes that only grows, 64 bytes a record. It
// is a tlog.HashReader, for tlog.ProveRecord and tlog.ProveTree.
type Store struct {
	f      file
	edge   edge // of what is in the file
	synced edge // of what is durable

	pending []byte // what is in the file after that
	anew    bool   // it is to be written anew
}

// file is what a Store needs of its file.
type file interface {
	io.ReaderAt
	io.WriterAt
	Truncate(size int64) error
	Sync() error
	Close() error
}

// openStore opens the tree in a folder for writing. sealed is the newest checkpoint, or
// nil: what it covers was durable before it was signed. Hashes after it that a crash has
// left are kept as far as they fit each other. Where the hashes that it covers
// are gone, damaged is why, and the tree goes on from the checkpoint: only proofs about
// earlier records are lost.
func openStore(f file, size int64, sealed *Checkpoint) (s *Store, damaged error, err error) {
	s = &Store{f: f}
	if sealed != nil {
		s.edge = sealed.edge.clone()
		if damaged, err = s.check(size); err != nil {
			return nil, nil, err
		}
		if damaged != nil {
			for i, at := range s.edge.indexes() {
				if _, err := f.WriteAt(s.edge.roots[i][:], at*tlog.HashSize); err != nil {
					return nil, nil, err
				}
			}
		}
	}
	leaves := leavesIn(size)
	for s.edge.size < leaves {
		next := s.edge.clone()
		at := end(s.edge.size)
		leaf, err := readHash(f, at)
		if err != nil {
			return nil, nil, err
		}
		fits := leaf != tlog.Hash{}
		for i, want := range next.add(leaf, nil) {
			have, err := readHash(f, at+int64(i)*tlog.HashSize)
			if err != nil {
				return nil, nil, err
			}
			fits = fits && have == want
		}
		if !fits {
			break
		}
		s.edge = next
	}
	s.synced = s.edge.clone()
	return s, damaged, errors.Join(f.Truncate(end(s.edge.size)), f.Sync())
}

// check compares what is stored with the newest checkpoint.
func (s *Store) check(size int64) (damaged, err error) {
	if size < end(s.edge.size) {
		return fmt.Errorf("the file of hashes has %d bytes, and %d were signed", size, end(s.edge.size)), nil
	}
	for i, at := range s.edge.indexes() {
		switch h, err := readHash(s.f, at*tlog.HashSize); {
		case err != nil:
			return nil, err
		case h != s.edge.roots[i]:
			return fmt.Errorf("the hashes of the first %d records are not those that were signed", s.edge.size), nil
		}
	}
	return nil, nil
}

// end is where the hashes of a tree end in the file.
func end(size uint64) int64 { return tlog.StoredHashCount(int64(size)) * tlog.HashSize }

// leavesIn is how many leaves a file of hashes has with all that they complete.
func leavesIn(size int64) uint64 {
	n := sort.Search(int(size/tlog.HashSize)+1, func(n int) bool { return end(uint64(n)) > size })
	return uint64(max(n-1, 0))
}

func readHash(f io.ReaderAt, at int64) (h tlog.Hash, err error) {
	_, err = f.ReadAt(h[:], at)
	return h, err
}

// add appends leaves. After an error the tree is as it was.
func (s *Store) add(leaves []tlog.Hash) error {
	if len(leaves) == 0 {
		return nil
	}
	next, stored := s.edge.clone(), make([]tlog.Hash, 0, 2*len(leaves)+64)
	for _, l := range leaves {
		stored = next.add(l, stored)
	}
	buf := make([]byte, 0, len(stored)*tlog.HashSize)
	for _, h := range stored {
		buf = append(buf, h[:]...)
	}
	if _, err := s.f.WriteAt(buf, end(s.edge.size)); err != nil {
		return errors.Join(fmt.Errorf("writing the tree: %w", err), s.f.Truncate(end(s.edge.size)))
	}
	s.edge, s.pending = next, append(s.pending, buf...)
	return nil
}

// sync makes the tree durable. A page that could not be written may count as clean from then
// on (fsync(2)), so after an error all is written anew, from memory: the records that the
// hashes are of may not be the same any more.
func (s *Store) sync() error {
	if s.synced.size == s.edge.size {
		return nil
	}
	if s.anew {
		if _, err := s.f.WriteAt(s.pending, end(s.synced.size)); err != nil {
			return fmt.Errorf("writing the tree: %w", err)
		}
	}
	if err := s.f.Sync(); err != nil {
		s.anew = true
		return fmt.Errorf("syncing the tree: %w", err)
	}
	s.synced, s.pending, s.anew = s.edge.clone(), nil, false
	return nil
}

// unsynced is how many records' hashes are not durable yet.
func (s *Store) unsynced() uint64 { return s.edge.size - s.synced.size }

// Size is how many records the tree has.
func (s *Store) Size() uint64 { return s.edge.size }

// Leaf is the hash of the record with a number.
func (s *Store) Leaf(number uint64) (tlog.Hash, error) {
	h, err := s.ReadHashes([]int64{tlog.StoredHashIndex(0, int64(number)-1)})
	if err != nil {
		return tlog.Hash{}, err
	}
	return h[0], nil
}

// ReadHashes implements tlog.HashReader.
func (s *Store) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	all := make([]tlog.Hash, len(indexes))
	for i, at := range indexes {
		var err error
		if all[i], err = readHash(s.f, at*tlog.HashSize); err != nil {
			return nil, fmt.Errorf("reading the tree: %w", err)
		}
		if all[i] == (tlog.Hash{}) {
			return nil, errors.New("reading the tree: a hash is lost")
		}
	}
	return all, nil
}

// Close closes the file.
func (s *Store) Close() error { return s.f.Close() }

// OpenStore opens the tree of the log in a folder for reading, also while a Sealer
// writes it. There may be none, which is an error that wraps fs.ErrNotExist.
func OpenStore(logDir string) (*Store, error) {
	f, err := os.Open(filepath.Join(Dir(logDir), hashesFile))
	if err != nil {
		return nil, err
	}
	i, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Store{f: f, edge: edge{size: leavesIn(i.Size())}}, nil
}

// create opens the file of hashes, and makes it and its folder if need be.
func create(logDir string) (*os.File, int64, error) {
	if err := durable.MkdirAll(Dir(logDir), 0o700); err != nil {
		return nil, 0, err
	}
	path := filepath.Join(Dir(logDir), hashesFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, 0, err
	}
	i, err := f.Stat()
	if err = errors.Join(err, durable.SyncDir(Dir(logDir))); err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, i.Size(), nil
}

// newest is the newest checkpoint of the log in a folder, or nil.
func newest(logDir string, key Key) (*Checkpoint, error) {
	b, err := os.ReadFile(filepath.Join(Dir(logDir), checkpointFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	c, err := ParseCheckpoint(string(b), key)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(Dir(logDir), checkpointFile), err)
	}
	return c, nil
}

// Sealed is a number that the log in a folder had reached for certain: whoever opens the
// log goes on after it, so that none is given twice. It is 0 if nothing is known.
func Sealed(logDir string) uint64 {
	n := uint64(0)
	if s, err := OpenStore(logDir); err == nil {
		n = s.Size()
		_ = s.Close()
	}
	if key, err := ReadKey(logDir); err == nil {
		if c, err := newest(logDir, key); err == nil && c != nil {
			n = max(n, c.Size+1) // its own record
		}
	}
	return min(n, math.MaxInt64/4)
}
