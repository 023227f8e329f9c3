// Package sink sends the records of the audit log to receivers: files, syslog, Splunk,
// OpenTelemetry, Elasticsearch and OpenSearch, Kafka, S3 and plain HTTPS.
//
// Each sink has a [Shipper], which reads the log by itself from its own cursor. A cursor
// moves when the receiver has acknowledged, and is on stable storage, so that a receiver
// gets each record at least once over crashes of either side. A record that is sent twice
// has the same uid. A receiver that is slow, hangs or is gone delays no other sink and no
// request: records wait in the log.
//
// A record reaches no receiver if the receiver refuses it for good, or if the log loses it
// before it is sent. Refused records are kept beside the log with the reason. Either loss
// is recorded in the log, as an event in state "audit-gap".
//
// A sink holds at most four times its batch in memory (batch.bytes), beside 3 MiB for its
// buffers.
//
// To add a sink: a type here with its protocol in a file of its own, its keys in
// internal/config/sinks.go and internal/daemon/sinks.go, and what `audit sink add` prints
// for it in cmd/sallyport/auditcmd/sink.go.
package sink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
)

// Types of sinks.
const (
	File          = "file"
	Syslog        = "syslog"
	Splunk        = "splunk"
	OTLP          = "otlp"
	Elasticsearch = "elasticsearch"
	Kafka         = "kafka"
	S3            = "s3"
	HTTPS         = "https"
)

// Config is one sink. Each type uses some of the fields.
type Config struct {
	Name, Type, Encoding string

	Path    string   // File
	MaxSize int64    // File: bytes at which it is rotated
	Keep    int      // File: rotated files that are kept
	Address string   // Syslog: host:port
	URL     string   // types that use HTTP
	Index   string   // Splunk, Elasticsearch
	Brokers []string // Kafka: host:port
	Topic   string   // Kafka
	SASL    string   // Kafka: plain, scram-sha-256, scram-sha-512; empty: no login
	Bucket  string   // S3
	Prefix  string   // S3: of the names of objects
	Region  string   // S3

	// Plain sends without TLS. For URLs, the scheme says it.
	Plain      bool
	TLS        TLS
	Addresses  []netip.Prefix // that may be connected to besides public ones: see Options.Dial
	Credential string         // name of the credential that the receiver asks for; empty: none

	Batch Batch
	// Bound is how many bytes of the log may wait for this sink. Block has Options.Hold
	// called beyond it.
	Bound int64
	Block bool
}

// TLS is what a connection is verified by, in PEM.
type TLS struct {
	Roots            []byte // authorities; empty: the system's
	Certificate, Key []byte // of the daemon, if the receiver asks for one
	ServerName       string // in the receiver's certificate; empty: the host
}

// Batch bounds what is sent at once. The first bound that is met ends a batch.
type Batch struct {
	Events int
	Bytes  int64
	Wait   time.Duration // after the first record
}

// Item is a record as it is sent.
type Item struct {
	Sequence uint64
	UID      string
	Time     int64 // milliseconds since the Unix epoch
	Severity audit.Severity
	Kind     audit.Kind
	Data     []byte // encoded, without a newline

	gap bool // it records a gap
}

// Encoder encodes a record, without a newline.
type Encoder func(auditlog.Entry) ([]byte, error)

// stored is the encoding that the log has.
func stored(r auditlog.Entry) ([]byte, error) { return r.JSON, nil }

// Protocol sends batches to one receiver. Its methods are called by one goroutine.
type Protocol interface {
	// Send sends a batch once, before ctx is done. With a nil error, the receiver has
	// all items but those that the Answer names. With an error it may have any of them:
	// *RefusedError says that it never takes this batch as a whole, all others that the
	// batch is to be sent again.
	Send(ctx context.Context, batch []Item) (Answer, error)
	Close() error
}

// Answer is what a receiver answered to a batch. Indexes are those of the batch.
type Answer struct {
	Text    string         // for a person
	Refused map[int]string // for good, with the reason
	Again   map[int]string // refused this time, with the reason
}

// RefusedError says that a receiver does not take a batch, or the record that is alone in
// it, however often it is sent.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

// RetryError is an error after which the receiver wants to be left alone for a time.
type RetryError struct {
	After time.Duration
	Err   error
}

func (e *RetryError) Error() string { return e.Err.Error() }
func (e *RetryError) Unwrap() error { return e.Err }

// Secret returns the fields of a sink's credential.
type Secret func(ctx context.Context) (map[string]string, error)

// Dial connects to a receiver.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// open returns the protocol of a sink, each Send of which ends within a time. It connects
// to nothing yet.
func open(c Config, secret Secret, dial Dial, within time.Duration) (Protocol, error) {
	switch c.Type {
	case File:
		return openFile(c), nil
	case Syslog:
		return openSyslog(c, dial)
	case Splunk:
		return openSplunk(c, secret, dial)
	case OTLP:
		return openOTLP(c, secret, dial)
	case Elasticsearch:
		return openElasticsearch(c, secret, dial)
	case Kafka:
		return openKafka(c, secret, dial, within)
	case S3:
		return openS3(c, secret, dial)
	case HTTPS:
		return openHTTPS(c, secret, dial)
	}
	return nil, fmt.Errorf("%q is no type of sinks", c.Type)
}

// errNoField is a credential that lacks what the protocol needs.
var errNoField = errors.New("the credential lacks a field")

// field returns one field of a credential, or its only one.
func field(fields map[string]string, name string) (string, error) {
	if v := fields[name]; v != "" {
		return v, nil
	}
	if len(fields) == 1 {
		for _, v := range fields {
			return v, nil
		}
	}
	return "", fmt.Errorf("%w: %s", errNoField, name)
}
