// Package idempotency serves requests with an Idempotency-Key once
// (draft-ietf-httpapi-idempotency-key-header): the first time by their route, then with what that
// answered, over restarts too.
//
// A request is on disk before its route begins, so that after a crash it is not served again
// but has ErrOutcome. One that has failed may be sent again. An answer that holds a secret
// which is shown once is not kept.
package idempotency

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"sallyport/internal/durable"
	"sallyport/internal/quota"
)

// Errors of Serve.
var (
	ErrBadKey    = errors.New("Idempotency-Key: use 1 to 255 visible characters, best a UUID")
	ErrBody      = errors.New("the body cannot be read")
	ErrOtherBody = errors.New("this idempotency key was sent with another request")
	ErrUnderWay  = errors.New("the request of this idempotency key is under way")
	ErrShown     = errors.New("already completed; the response held a one-time secret and was not stored: delete the resource and create it again")
	ErrOutcome   = errors.New("the request was begun, but its outcome was not stored: look whether what it makes is there")
	ErrFull      = errors.New("too much is under way")
)

// Bounds of what is kept of requests with an idempotency key.
const (
	keptFor   = 24 * time.Hour
	keptEach  = 256      // of one caller; its oldest goes
	keptAll   = 4096     // of all, by share; the oldest of the same owner goes
	keptLeast = 16       // of each caller, whatever others have
	keptBytes = 64 << 10 // of an answer; of a longer one is kept that there was one
)

// kept is a request with an idempotency key and what came of it, a file.
type kept struct {
	Who   string    `json:"who"`
	Owner string    `json:"owner"`
	Print string    `json:"sha256"` // of method, path and body
	Begun time.Time `json:"begun"`
	// Status is the answer's, 0 while there is none.
	Status int    `json:"status,omitempty"`
	Type   string `json:"type,omitempty"`
	Body   []byte `json:"body,omitempty"`
	Shown  bool   `json:"shown,omitempty"` // the body held what is shown once
	Clip   bool   `json:"clip,omitempty"`  // the body was too long

	busy bool // in this process
}

// Store keeps what requests with an idempotency key came to, over restarts. It is
// safe for concurrent use.
type Store struct {
	dir string
	log *slog.Logger
	now func() time.Time

	mu  sync.Mutex
	all map[string]*kept // by the file's name
	of  *quota.Places    // of callers
}

// Open reads what is kept in dir, which is made.
func Open(dir string, log *slog.Logger) (*Store, error) {
	if err := durable.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	o := &Store{dir: dir, log: log, now: time.Now, all: map[string]*kept{}, of: quota.New(keptAll, keptEach).Least(keptLeast)}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		k := new(kept)
		if _, err := durable.ReadJSON(path, k); err != nil || k.Who == "" || len(o.all) >= 2*keptAll {
			log.Warn("what is kept of a request cannot be used and is removed", "file", path, "error", err)
			_ = os.Remove(path)
			continue
		}
		o.all[f.Name()] = k
		k.Owner = cmp.Or(k.Owner, k.Who) // of an earlier version
		o.of.Restore(k.Who, k.Owner)
	}
	return o, nil
}

// begin returns what came of the request before, or nil for its first time.
func (o *Store) begin(id, print string, of Call) (*kept, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.now()
	if k := o.all[id]; k != nil && (k.busy || now.Sub(k.Begun) < keptFor) {
		switch {
		case k.Print != print:
			return nil, ErrOtherBody
		case k.busy:
			return nil, ErrUnderWay
		case k.Status == 0 || k.Clip:
			return nil, ErrOutcome
		case k.Shown:
			return nil, ErrShown
		}
		return k, nil
	}
	k := &kept{Who: of.Caller, Owner: of.Owner, Print: print, Begun: now.UTC(), busy: true}
	o.drop(id) // one that has expired
	if err := o.enter(k, now); err != nil {
		return nil, err
	}
	if err := o.write(id, k); err != nil {
		o.of.Leave(k.Who, k.Owner)
		return nil, err
	}
	o.all[id] = k
	return nil, nil
}

// enter makes room for one more of a caller's, at the cost of that caller and its owner
// alone. The caller holds mu.
func (o *Store) enter(k *kept, now time.Time) error {
	for id, k := range o.all {
		if !k.busy && now.Sub(k.Begun) >= keptFor {
			o.drop(id)
		}
	}
	for !o.of.Enter(k.Who, k.Owner) {
		oldest := ""
		for id, other := range o.all {
			if other.Owner != k.Owner || other.busy {
				continue
			}
			// The caller's own go first. It keeps its least number all the same.
			own, best := other.Who == k.Who, o.all[oldest]
			if best == nil || own && best.Who != k.Who || own == (best.Who == k.Who) && other.Begun.Before(best.Begun) {
				oldest = id
			}
		}
		if oldest == "" {
			return ErrFull
		}
		o.drop(oldest)
	}
	return nil
}

// end keeps an answer, or with a nil answer nothing: the request may be sent again.
func (o *Store) end(id string, a *kept) {
	o.mu.Lock()
	defer o.mu.Unlock()
	k := o.all[id]
	if k == nil {
		return
	}
	if k.busy = false; a == nil {
		o.drop(id)
		return
	}
	k.Status, k.Type, k.Body, k.Shown, k.Clip = a.Status, a.Type, a.Body, a.Shown, a.Clip
	if err := o.write(id, k); err != nil {
		// After a restart it will say that the outcome is not known.
		o.log.Error("the answer to a request with an idempotency key cannot be kept", "error", err)
	}
}

func (o *Store) drop(id string) {
	k := o.all[id]
	if k == nil {
		return
	}
	delete(o.all, id)
	o.of.Leave(k.Who, k.Owner)
	if err := os.Remove(filepath.Join(o.dir, id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		o.log.Warn("what is kept of a request cannot be removed", "error", err)
	}
}

func (o *Store) write(id string, k *kept) error {
	return durable.WriteJSON(filepath.Join(o.dir, id), k)
}

// Call is what a request with an idempotency key is known by.
type Call struct {
	Caller, Owner string   // by ID; an owner's callers share its bounds
	Keys          []string // the values of Idempotency-Key
	Secret        bool     // the answer holds a secret that is shown once
}

// Serve serves a request the first time by serve, then with what that answered. With an error it
// has answered nothing. It reads the whole body.
func (o *Store) Serve(w http.ResponseWriter, r *http.Request, call Call, serve http.HandlerFunc) error {
	key := strings.Trim(call.Keys[0], `"`) // RFC 8941 strings are quoted, most clients' keys are not
	if len(call.Keys) != 1 || key == "" || len(key) > 255 || strings.ContainsFunc(key, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return ErrBadKey
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBody, err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	id, print := digest(call.Caller, key), digest(r.Method, r.URL.RequestURI(), string(body))
	before, err := o.begin(id, print, call)
	if err != nil {
		return err
	}
	if before != nil {
		w.Header().Set("Idempotency-Replayed", "true")
		if before.Type != "" {
			w.Header().Set("Content-Type", before.Type)
		}
		w.WriteHeader(before.Status)
		_, _ = w.Write(before.Body) // the client is gone if this fails
		return nil
	}
	var answer *kept
	defer func() { o.end(id, answer) }() // also of a handler that panics
	caught := &answerWriter{ResponseWriter: w}
	serve(caught, r)
	if caught.status/100 != 2 {
		return nil // nothing came of it
	}
	answer = &kept{Status: caught.status, Type: w.Header().Get("Content-Type"), Shown: call.Secret, Clip: caught.long}
	if !call.Secret && !caught.long {
		answer.Body = caught.body.Bytes()
	}
	return nil
}

// digest is of parts that cannot be mistaken for others.
func digest(parts ...string) string {
	d := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(d, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(d.Sum(nil))
}

// answerWriter sees what is answered.
type answerWriter struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
	long   bool
}

func (a *answerWriter) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answerWriter) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	if a.body.Len()+len(p) > keptBytes {
		a.long = true
	} else if !a.long {
		a.body.Write(p)
	}
	return a.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (a *answerWriter) Unwrap() http.ResponseWriter { return a.ResponseWriter }
