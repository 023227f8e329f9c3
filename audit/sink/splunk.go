package sink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"sallyport/internal/periodic"
)

// splunkSink speaks to Splunk's HTTP Event Collector, and waits until the indexers have
// acknowledged where the token asks for that ("About HTTP Event Collector Indexer
// Acknowledgment" in Splunk's documentation).
type splunkSink struct {
	*poster
	url, index, host, channel string
}

func openSplunk(c Config, secret Secret, dial Dial) (Protocol, error) {
	p, err := newPoster(c, secret, dial, func(h http.Header, fields map[string]string) error {
		token, err := field(fields, "token")
		h.Set("Authorization", "Splunk "+token)
		return err
	})
	host, _ := os.Hostname()
	return &splunkSink{p, strings.TrimSuffix(c.URL, "/"), c.Index, host, uuid.NewString()}, err
}

type splunkReply struct {
	Text    string `json:"text"`
	Code    int    `json:"code"`
	Ack     *int64 `json:"ackId"`
	Invalid *int   `json:"invalid-event-number"`
}

func (s *splunkSink) Send(ctx context.Context, batch []Item) (Answer, error) {
	var body []byte
	for _, i := range batch {
		body = fmt.Appendf(body, `{"time":%d.%03d,"host":%s,"source":"sallyport","sourcetype":"sallyport:audit"`, i.Time/1000, i.Time%1000, quoted(s.host))
		if s.index != "" {
			body = fmt.Appendf(body, `,"index":%s`, quoted(s.index))
		}
		body = fmt.Appendf(body, `,"event":%s}`, object(i.Data))
	}
	h := http.Header{"Content-Type": {"application/json"}, "X-Splunk-Request-Channel": {s.channel}}
	text, reply, err := s.post(ctx, s.url+"/services/collector/event", h, body)
	var r splunkReply
	_ = json.Unmarshal(reply, &r) // what is no JSON says nothing more
	var refused *RefusedError
	if errors.As(err, &refused) && r.Invalid != nil && 0 <= *r.Invalid && *r.Invalid < len(batch) {
		return s.without(ctx, batch, *r.Invalid, refused.Reason)
	}
	if err != nil {
		return Answer{}, err
	}
	if r.Ack == nil {
		return Answer{Text: text + ", without indexer acknowledgement"}, nil
	}
	return Answer{Text: text + ", acknowledged"}, s.acknowledged(ctx, h, *r.Ack)
}

// without sends a batch again without one that was refused, for which the others were not
// taken either.
func (s *splunkSink) without(ctx context.Context, batch []Item, bad int, reason string) (Answer, error) {
	a := Answer{Text: reason, Refused: map[int]string{bad: reason}}
	if len(batch) == 1 {
		return a, nil
	}
	rest, err := s.Send(ctx, slices.Delete(slices.Clone(batch), bad, bad+1))
	for n, reason := range rest.Refused {
		if n >= bad {
			n++
		}
		a.Refused[n] = reason
	}
	a.Text = rest.Text
	return a, err
}

// acknowledged waits until the indexers have a batch.
func (s *splunkSink) acknowledged(ctx context.Context, h http.Header, ack int64) error {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		_, reply, err := s.post(ctx, s.url+"/services/collector/ack?channel="+s.channel, h, fmt.Appendf(nil, `{"acks":[%d]}`, ack))
		if err != nil {
			var refused *RefusedError
			if errors.As(err, &refused) { // which is about the question
				err = errors.New(refused.Reason)
			}
			return fmt.Errorf("asking for the indexers' acknowledgement: %w", err)
		}
		var r struct {
			Acks map[string]bool `json:"acks"`
		}
		if err := json.Unmarshal(reply, &r); err != nil {
			return fmt.Errorf("the indexers' acknowledgement: %w", err)
		}
		if r.Acks[fmt.Sprint(ack)] {
			return nil
		}
		if !periodic.Sleep(ctx, wait) {
			return fmt.Errorf("the indexers have not acknowledged: %w", ctx.Err())
		}
	}
}
