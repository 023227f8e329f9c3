package sink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"sallyport/audit"
)

// syslogSink sends RFC 5424 messages with octet counting, over TLS (RFC 5425) or TCP
// (RFC 6587, 3.4.1).
//
// Syslog has no acknowledgement. Each batch has a connection, of which this side ends
// its half; the receiver ends the other when it has read everything. A receiver that ends
// it earlier resets the connection, and the batch is sent again. The daemon cannot know
// which messages the receiver loses after it has read them.
type syslogSink struct {
	address, host string
	dial          Dial
}

func openSyslog(c Config, dial Dial) (Protocol, error) {
	s := &syslogSink{address: c.Address, host: "-"}
	if name, err := os.Hostname(); err == nil {
		s.host = header(name, 255)
	}
	var err error
	s.dial, err = c.secured(dial)
	return s, err
}

func (*syslogSink) Close() error { return nil }

func (s *syslogSink) Send(ctx context.Context, batch []Item) (Answer, error) {
	conn, err := s.dial(ctx, "tcp", s.address)
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	half, ok := conn.(interface{ CloseWrite() error })
	if !ok {
		return Answer{}, errors.New("the connection cannot be ended by half")
	}
	var body []byte
	for _, i := range batch {
		m := s.message(i)
		body = fmt.Appendf(body, "%d %s", len(m), m)
	}
	if _, err := conn.Write(body); err != nil {
		return Answer{}, err
	}
	if err := half.CloseWrite(); err != nil {
		return Answer{}, err
	}
	// A receiver that ends without close_notify has read everything nevertheless: else
	// its kernel resets the connection (RFC 2525, 2.17).
	said, err := io.ReadAll(io.LimitReader(conn, maxText))
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return Answer{}, fmt.Errorf("the receiver did not end the connection after the last message: %w", err)
	}
	return Answer{Text: strings.TrimSpace("received " + excerpt(said, nil))}, nil
}

// severities of RFC 5424, 6.2.1.
var syslogSeverity = map[audit.Severity]int{
	audit.SeverityInformational: 6, audit.SeverityLow: 5, audit.SeverityMedium: 4, audit.SeverityHigh: 3, audit.SeverityCritical: 2,
}

// message is one of RFC 5424: facility 13 is "log audit", sequenceId counts to 2^31-1
// (7.3.1).
func (s *syslogSink) message(i Item) []byte {
	severity, ok := syslogSeverity[i.Severity]
	if !ok {
		severity = 6
	}
	const facility, most = 13, 1<<31 - 1
	return fmt.Appendf(nil, `<%d>1 %s %s sallyport - %s [meta sequenceId="%d"] %s`, facility*8+severity,
		time.UnixMilli(i.Time).UTC().Format("2006-01-02T15:04:05.000Z"), s.host, header(string(i.Kind), 32),
		(i.Sequence-1)%most+1, i.Data)
}

// header is a text as fields of the header may be: printable ASCII without spaces.
func header(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '_'
		}
		return r
	}, text)
	if text == "" {
		return "-"
	}
	return text[:min(len(text), most)]
}
