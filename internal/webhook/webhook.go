// Package webhook tells servers what happens: each event of a lifecycle in the
// audit log, as a signed POST (https://www.standardwebhooks.com, version 1).
//
// It guarantees that an event is sent at least once, in order, over restarts, until
// the server takes it (a status of 2xx) or it is older than [GiveUp]; that nothing
// waits for it, since it reads the log like any other reader and queues nothing;
// and that it connects to no address but public ones and those that are named. A
// server that is slow is behind, and one that has gone (410) is not asked again
// before a restart. It does not keep a server from seeing an event twice: the
// webhook-id tells.
package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sallyport/audit"
	"sallyport/gateway/upstream"
	"sallyport/internal/durable"
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

// Hook is one server.
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
	// until ctx is done.
	Events func(ctx context.Context, from uint64) iter.Seq2[*audit.Event, error]
	Logger *slog.Logger
}

// Sender tells one server.
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
	// Seen is the number of the last event that was taken, passed over or not
	// wanted.
	Seen uint64 `json:"seen"`
	// Tried is when the event after it was sent first.
	Tried   time.Time `json:"tried,omitzero"`
	Skipped uint64    `json:"skipped,omitempty"` // events that were given up
}

// ParseSecret reads what is in a secret file: whsec_ and Base64 of 24 to 64 bytes.
func ParseSecret(text string) ([]byte, error) {
	rest, ok := strings.CutPrefix(strings.TrimSpace(text), "whsec_")
	secret, err := base64.StdEncoding.DecodeString(rest)
	if !ok || err != nil || len(secret) < 24 || len(secret) > 64 {
		return nil, errors.New("a webhook's secret is whsec_ and the Base64 of 24 to 64 random bytes")
	}
	return secret, nil
}

// New returns what tells a server, from where it is.
func New(h Hook, o Options) (*Sender, error) {
	if err := durable.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	name := sha256.Sum256([]byte(h.URL))
	s := &Sender{opt: o, hook: h, file: filepath.Join(o.Dir, hex.EncodeToString(name[:16])+".json"), firstTry: firstTry, lastTry: lastTry, giveUp: GiveUp}
	data, err := os.ReadFile(s.file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.at.URL, s.at.Seen = h.URL, o.Last
		if err := s.keep(); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	default:
		if err := json.Unmarshal(data, &s.at); err != nil {
			return nil, fmt.Errorf("reading %s: %w", s.file, err)
		}
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
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	ip := at.Addr().Unmap().WithZone("")
	for _, p := range s.hook.Addresses {
		if p.Contains(ip) {
			return nil
		}
	}
	class := upstream.Classify(ip)
	if class == upstream.Public && strings.HasPrefix(s.hook.URL, "https:") {
		return nil
	}
	return fmt.Errorf("%s is a %v address that no webhook names: write it under addresses, if it is meant", ip, class)
}

// Run tells the server until ctx is done.
func (s *Sender) Run(ctx context.Context) error {
	defer s.client.CloseIdleConnections()
	for e, err := range s.opt.Events(ctx, s.at.Seen+1) {
		var damage *audit.DamageError
		if errors.As(err, &damage) {
			continue // `sallyport audit verify` tells of it
		} else if err != nil {
			s.opt.Logger.Error("a webhook ends: the audit log cannot be read", "url", s.hook.URL, "error", err)
			return nil // the daemon goes on
		}
		told, ok := client.EventOf(e)
		if !ok || !s.wants(told.Type) {
			continue // what is not wanted costs no write: it is read again after a restart
		}
		gone, err := s.deliver(ctx, told)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if gone {
			s.opt.Logger.Warn("a webhook is no more and is not asked again before a restart", "url", s.hook.URL)
			return nil
		}
	}
	return nil
}

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

// deliver sends one event until it is taken or given up.
func (s *Sender) deliver(ctx context.Context, e client.Event) (gone bool, err error) {
	body, err := json.Marshal(message{e.Type, e.Time, e})
	if err != nil {
		return false, err
	}
	wait := s.firstTry
	for {
		status, err := s.send(ctx, e.ID, body)
		switch {
		case ctx.Err() != nil:
			return false, nil
		case err == nil && status/100 == 2:
			s.at.Seen, s.at.Tried = e.Position, time.Time{}
			return false, s.keep()
		case err == nil && status == http.StatusGone:
			return true, nil
		case err == nil:
			err = fmt.Errorf("it answered %d", status)
		}
		if s.at.Tried.IsZero() {
			s.at.Tried = time.Now().UTC()
			s.opt.Logger.Warn("a webhook does not take an event, which is tried again", "url", s.hook.URL, "event", e.ID, "error", err)
			if err := s.keep(); err != nil {
				return false, err
			}
		}
		if time.Since(s.at.Tried) > s.giveUp {
			s.at.Seen, s.at.Tried = e.Position, time.Time{}
			s.at.Skipped++
			s.opt.Logger.Error("a webhook has not taken an event, which is passed over", "url", s.hook.URL, "event", e.ID, "skipped", s.at.Skipped, "error", err)
			return false, s.keep()
		}
		pause := time.NewTimer(wait/2 + rand.N(wait/2+1)) // so that many do not come back at once
		select {
		case <-ctx.Done():
			pause.Stop()
			return false, nil
		case <-pause.C:
		}
		wait = min(2*wait, s.lastTry)
	}
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
	req.Header.Set("Webhook-Signature", Sign(s.hook.Secret, id, stamp, body))
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, maxReply) // what it says does not matter
	return resp.StatusCode, nil
}

// Sign returns the webhook-signature of a message: v1 and HMAC-SHA256 over its id,
// timestamp and body.
func Sign(secret []byte, id, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

func (s *Sender) keep() error {
	data, err := json.Marshal(s.at)
	if err != nil {
		return err
	}
	return durable.WriteFile(s.file, append(data, '\n'), 0o600)
}
