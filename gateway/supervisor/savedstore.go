package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"

	"sallyport/gateway/credential/sent"
	"sallyport/gateway/workerapi"
	"sallyport/internal/durable"
	"sallyport/internal/ipc"
)

// SavedStore keeps what the answers to each sandbox and client are searched for, sealed,
// in a file for each, so that the next worker and the next daemon search for it too. It is
// safe for concurrent use.
//
// The worker says what to keep. One that has been taken over can have answers to a sandbox
// searched for less, or for what is no secret, which is overwritten then.
type SavedStore struct {
	dir  string
	key  durable.Sealer
	mu   sync.Mutex
	part []byte // of the SaveRequest that is coming
}

// OpenSavedStore makes the folder, if need be.
func OpenSavedStore(dir string, key durable.Sealer) (*SavedStore, error) {
	if err := durable.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("what answers are searched for: %w", err)
	}
	return &SavedStore{dir: dir, key: key}, nil
}

func (s *SavedStore) file(id string) (string, error) {
	if !filepath.IsLocal(id) || filepath.Base(id) != id || id[0] == '.' {
		return "", fmt.Errorf("%q is no ID", id)
	}
	return filepath.Join(s.dir, id+".sealed"), nil
}

// load returns what was saved, in JSON; nil for nothing. s.mu is held.
func (s *SavedStore) load(id string) ([]byte, error) {
	path, err := s.file(id)
	if err != nil {
		return nil, err
	}
	text, err := durable.ReadSealed(path, s.key)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%w: restore it from a backup, or remove the sandbox", err)
	}
	return text, nil
}

// store replaces it. s.mu is held.
func (s *SavedStore) store(id string, text []byte) error {
	path, err := s.file(id)
	if err != nil {
		return err
	}
	return durable.WriteSealed(path, s.key, text)
}

// add takes a part of what is to be saved, and saves with the last.
func (s *SavedStore) add(c workerapi.SaveRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.First {
		s.part = nil
	}
	if len(s.part)+len(c.Part) > workerapi.MaxSaved {
		return errors.New("the worker saves more than there can be")
	}
	if s.part = append(s.part, c.Part...); !c.Last {
		return nil
	}
	text := s.part
	s.part = nil
	defer clear(text)
	var all, more sent.Saved
	if err := json.Unmarshal(text, &more); err != nil {
		return err
	}
	before, err := s.load(c.ID)
	if err != nil {
		return err
	}
	defer clear(before)
	if before != nil {
		if err := json.Unmarshal(before, &all); err != nil {
			return err
		}
	}
	if err := all.Add(more); err != nil {
		return err
	}
	if text, err = json.Marshal(all); err != nil {
		return err
	}
	defer clear(text)
	return s.store(c.ID, text)
}

// Copy gives a fork what was saved of its parent.
func (s *SavedStore) Copy(parent, child string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	text, err := s.load(parent)
	if err != nil || text == nil {
		return err
	}
	defer clear(text)
	return s.store(child, text)
}

// Forget removes what was saved. It is no error if there is nothing.
func (s *SavedStore) Forget(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	path, err := s.file(id)
	if err != nil {
		return err
	}
	return durable.Remove(path)
}

// errUnknownID refuses to keep files for nobody: a worker could fill the disk otherwise.
var errUnknownID = errors.New("no such sandbox is running, and no such client is known")

func (s *Supervisor) saved(_ context.Context, c workerapi.SavedRequest) (workerapi.SavedReply, error) {
	if s.o.Saved == nil {
		return workerapi.SavedReply{}, nil
	}
	if !s.isKnown(c.ID) {
		return workerapi.SavedReply{}, errUnknownID
	}
	s.o.Saved.mu.Lock()
	defer s.o.Saved.mu.Unlock()
	text, err := s.o.Saved.load(c.ID)
	if err != nil {
		s.o.Logger.Error("what answers are searched for cannot be read; requests of the sandbox are refused", "id", c.ID, "error", err)
	}
	return workerapi.SavedReply{Saved: text}, err
}

func (s *Supervisor) save(_ context.Context, c workerapi.SaveRequest) (ipc.None, error) {
	if s.o.Saved == nil {
		return ipc.None{}, nil
	}
	if !s.isKnown(c.ID) {
		return ipc.None{}, errUnknownID
	}
	err := s.o.Saved.add(c)
	if err != nil {
		s.o.Logger.Error("what answers are searched for cannot be kept; the request is refused", "id", c.ID, "error", err)
	}
	return ipc.None{}, err
}
