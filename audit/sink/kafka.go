package sink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// kafkaSink produces to a topic, and waits for all in-sync replicas. A record's key is its
// uid: a repeat goes to the same partition.
type kafkaSink struct {
	opts   []kgo.Opt
	client *kgo.Client // nil after a failure: the next one knows nothing of it
}

func openKafka(c Config, secret Secret, dial Dial, within time.Duration) (Protocol, error) {
	o := []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...), kgo.DefaultProduceTopic(c.Topic), kgo.ClientID("sallyport"),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		// A batch is sent again as a whole. Idempotent production would hold it back
		// until the broker has answered about the first try.
		kgo.DisableIdempotentWrite(), kgo.MaxProduceRequestsInflightPerBroker(1),
		kgo.MaxBufferedRecords(c.Batch.Events), kgo.ProducerBatchMaxBytes(1 << 20),
		// A connection that hangs is given up before the batch is. RecordDeliveryTimeout
		// would count from the event's time.
		kgo.ProduceRequestTimeout(within / 4), kgo.RequestTimeoutOverhead(within / 4), kgo.RecordRetries(3),
		// The shipper backs off.
		kgo.RetryBackoffFn(func(int) time.Duration { return within / 20 }), kgo.MetadataMinAge(within / 20),
	}
	if c.SASL != "" {
		o = append(o, kgo.SASL(login(c.SASL, secret)))
	}
	dial, err := c.secured(dial)
	if err != nil {
		return nil, err
	}
	o = append(o, kgo.Dialer(dial))
	return &kafkaSink{opts: o}, kgo.ValidateOpts(o...)
}

// login is a SASL mechanism with the fields username and password.
func login(mechanism string, secret Secret) sasl.Mechanism {
	user := func(ctx context.Context) (string, string, error) {
		fields, err := secret(ctx)
		if err != nil {
			return "", "", err
		}
		if fields["username"] == "" || fields["password"] == "" {
			return "", "", fmt.Errorf("%w: username and password", errNoField)
		}
		return fields["username"], fields["password"], nil
	}
	asSCRAM := func(ctx context.Context) (scram.Auth, error) {
		name, password, err := user(ctx)
		return scram.Auth{User: name, Pass: password}, err
	}
	switch mechanism {
	case "scram-sha-256":
		return scram.Sha256(asSCRAM)
	case "scram-sha-512":
		return scram.Sha512(asSCRAM)
	}
	return plain.Plain(func(ctx context.Context) (plain.Auth, error) {
		name, password, err := user(ctx)
		return plain.Auth{User: name, Pass: password}, err
	})
}

func (s *kafkaSink) Send(ctx context.Context, batch []Item) (Answer, error) {
	records := make([]*kgo.Record, len(batch))
	at := make(map[*kgo.Record]int, len(batch))
	for n, i := range batch {
		records[n] = &kgo.Record{Key: []byte(i.UID), Value: i.Data, Timestamp: time.UnixMilli(i.Time)}
		at[records[n]] = n
	}
	if s.client == nil {
		var err error
		if s.client, err = kgo.NewClient(s.opts...); err != nil {
			return Answer{}, err
		}
	}
	a := Answer{Refused: map[int]string{}, Again: map[int]string{}}
	var failure error
	for _, r := range s.client.ProduceSync(ctx, records...) {
		n := at[r.Record]
		switch {
		case r.Err == nil:
		case errors.Is(r.Err, kerr.MessageTooLarge), errors.Is(r.Err, kerr.InvalidRecord):
			a.Refused[n] = r.Err.Error()
		default:
			a.Again[n], failure = r.Err.Error(), r.Err
		}
	}
	if failure != nil {
		_ = s.Close()
	}
	if len(a.Again) == len(batch) {
		return Answer{}, failure
	}
	a.Text = fmt.Sprintf("%d of %d records are at all in-sync replicas", len(batch)-len(a.Refused)-len(a.Again), len(batch))
	return a, nil
}

func (s *kafkaSink) Close() error {
	if s.client != nil {
		s.client.Close()
		s.client = nil
	}
	return nil
}
