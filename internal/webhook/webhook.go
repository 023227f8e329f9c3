// Package webhook sends each lifecycle event of the audit log to servers, as a signed
// POST (https://www.standardwebhooks.com, version 1).
//
// It sends an event at least once, across restarts, until the server accepts it (2xx) or
// [GiveUp] has passed. It keeps the order of events of one tenant, and of one sandbox of
// the host's own, and a delay of one does not delay another. It reads the audit log like
// any other reader, so that nothing in the daemon waits for it. It connects to public
// addresses and to those that the configuration names, and to no others. After 410 it
// sends nothing to that server until the daemon restarts. A server may get an event
// twice: the webhook-id identifies it.
package webhook

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sallyport/audit"
	"sallyport/gateway/upstream"
	"sallyport/internal/durable"
	"sallyport/internal/webhook/signature"
	"sallyport/sandbox/client"
)

// Bounds of a delivery.
const (
	GiveUp   = 24 * time.Hour // after the first attempt an event is passed over
	within   = 15 * time.Second
	firstTry = time.Second // between attempts, doubled each time
	lastTry  = 5 * time.Minute
	maxReply = 4 << 10 // bytes that are read of an answer, so that its connection serves again
)

// Hook is one server and the events that it gets.
type Hook struct {
	URL       string
	Events    []string // types, * is any run of characters; none is all
	Secret    []byte
	Addresses []netip.Prefix // besides public ones; with http the only ones
}

// Options of New.
type Options struct {
	// Dir holds how far each server is.
	Dir string
	// Last is the number of the log's last event: a server that is new is told what
	// comes after it.
	Last uint64
	// Events yields the events of the log from a number on, and waits for more
	// until ctx is done if it is to follow.
	Events func(ctx context.Context, from uint64, follow bool) iter.Seq2[*audit.Event, error]
	Logger *slog.Logger
}

// Sender sends events to one server.
type Sender struct {
	opt    Options
	hook   Hook
	file   string
	client *http.Client
	at     position

	firstTry, lastTry, giveUp time.Duration
}

// position is how far a server is, in a file.
type position struct {
	URL string `json:"url"`
	// Seen is the number of the last event up to which each was taken, passed over or
	// not wanted; Ahead is that of a lane that is further.
	Seen  uint64            `json:"seen"`
	Ahead map[string]uint64 `json:"ahead,omitempty"`
	// Since is when a lane's next event was sent first, if it was not taken.
	Since   map[string]time.Time `json:"since,omitempty"`
	Skipped uint64               `json:"skipped,omitempty"` // events that were given up
}

// New returns a Sender that goes on after the last event that the server accepted.
func New(h Hook, o Options) (*Sender, error) {
	if err := durable.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	name := sha256.Sum256([]byte(h.URL))
	s := &Sender{opt: o, hook: h, file: filepath.Join(o.Dir, hex.EncodeToString(name[:16])+".json"), firstTry: firstTry, lastTry: lastTry, giveUp: GiveUp}
	found, err := durable.ReadJSON(s.file, &s.at)
	if err != nil {
		return nil, err
	}
	if !found {
		s.at.URL, s.at.Seen = h.URL, o.Last
		if err := s.keep(); err != nil {
			return nil, err
		}
	}
	if s.at.Ahead == nil {
		s.at.Ahead = map[string]uint64{}
	}
	if s.at.Since == nil {
		s.at.Since = map[string]time.Time{}
	}
	dialer := &net.Dialer{Timeout: within, Control: func(_, address string, _ syscall.RawConn) error { return s.permits(address) }}
	s.client = &http.Client{
		Timeout:       within,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     &http.Transport{DialContext: dialer.DialContext, MaxIdleConns: 1, IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true}, // and no proxy
	}
	return s, nil
}

// permits is asked for the very address that is connected to.
func (s *Sender) permits(address string) error {
	return upstream.Permit(address, s.hook.Addresses, strings.HasPrefix(s.hook.URL, "https:"))
}

// Run sends events to the server until ctx is done.
func (s *Sender) Run(ctx context.Context) error {
	defer s.client.CloseIdleConnections()
	l := &lanes{s: s, next: s.at.Seen + 1, of: map[string]*lane{}}
	for ctx.Err() == nil {
		err := l.gather(ctx, len(l.of) == 0)
		if errors.Is(err, errRead) && ctx.Err() == nil {
			s.opt.Logger.Error("a webhook ends: the audit log cannot be read", "url", s.hook.URL, "error", err)
			return nil // the daemon goes on
		}
		l.settle() // what is not wanted costs no write: it is read again after a restart
		idle, gone, err := l.round(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case gone:
			s.opt.Logger.Warn("a webhook is no more and is not asked again before a restart", "url", s.hook.URL)
			return nil
		case idle > 0 && len(l.of) > 0 && !l.more:
			select {
			case <-ctx.Done():
			case <-time.After(idle):
			}
		}
	}
	return nil
}

// jitter is about a time, so that many do not come back at once.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

func (s *Sender) wants(kind string) bool {
	for _, p := range s.hook.Events {
		if ok, _ := path.Match(p, kind); ok {
			return true
		}
	}
	return len(s.hook.Events) == 0
}

// message is what is sent.
type message struct {
	Type      string       `json:"type"`
	Timestamp time.Time    `json:"timestamp"`
	Data      client.Event `json:"data"`
}

// deliver sends an event of a lane once, and says whether it is done with, taken or given
// up, and whether the server is no more.
func (s *Sender) deliver(ctx context.Context, lane string, e client.Event) (done, gone bool, err error) {
	body, err := json.Marshal(message{e.Type, e.Time, e})
	if err != nil {
		return false, false, err
	}
	status, err := s.send(ctx, e.ID, body)
	switch {
	case ctx.Err() != nil:
		return false, false, nil
	case err == nil && status/100 == 2:
		return true, false, nil
	case err == nil && status == http.StatusGone:
		return false, true, nil
	case err == nil:
		err = fmt.Errorf("it answered %d", status)
	}
	since, tried := s.at.Since[lane]
	if !tried {
		s.at.Since[lane] = time.Now().UTC()
		s.opt.Logger.Warn("a webhook does not take an event, which is tried again", "url", s.hook.URL, "event", e.ID, "error", err)
		return false, false, s.keep()
	}
	if time.Since(since) <= s.giveUp {
		return false, false, nil
	}
	s.at.Skipped++
	s.opt.Logger.Error("a webhook has not taken an event, which is passed over", "url", s.hook.URL, "event", e.ID, "skipped", s.at.Skipped, "error", err)
	return true, false, nil
}

func (s *Sender) send(ctx context.Context, id string, body []byte) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.hook.URL, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	stamp := strconv.FormatInt(time.Now().Unix(), 10)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "Sallyport")
	req.Header.Set("Webhook-Id", id)
	req.Header.Set("Webhook-Timestamp", stamp)
	req.Header.Set("Webhook-Signature", signature.Sign(s.hook.Secret, id, stamp, body))
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, maxReply) // what it says does not matter
	return resp.StatusCode, nil
}

func (s *Sender) keep() error { return durable.WriteJSON(s.file, s.at) }
