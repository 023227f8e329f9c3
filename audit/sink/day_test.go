package sink_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sallyport/audit"
	"sallyport/audit/sink"
	"sallyport/internal/test/must"
)

// forgetful are receivers that keep nothing, by the names of their sinks.
func forgetful(t *testing.T) (list []*receiver) {
	for _, begin := range []func(*testing.T) *receiver{splunkReceiver, otlpReceiver, httpsReceiver, s3Receiver} {
		r := begin(t)
		list = append(list, r)
		answer := map[string]string{sink.Splunk: `{"text":"Success","code":0}`}[r.config.Type]
		s := overHTTP(t, r, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			_, _ = io.Copy(io.Discard, q.Body)
			_, _ = io.WriteString(w, answer)
		}))
		r.config.URL = s.URL
	}
	es := elasticsearchReceiver(t)
	s := overHTTP(t, es, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body)
		_, _ = io.WriteString(w, `{"errors":false,"items":[]}`)
	}))
	es.config.URL = s.URL
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, "audit"))
	must.OK(t, err)
	t.Cleanup(cluster.Close)
	cluster.ControlKey(int16(kmsg.Produce), func(q kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		in := q.(*kmsg.ProduceRequest)
		out := in.ResponseKind().(*kmsg.ProduceResponse)
		for _, topic := range in.Topics {
			to := kmsg.NewProduceResponseTopic()
			to.Topic, to.TopicID = topic.Topic, topic.TopicID
			for _, p := range topic.Partitions {
				of := kmsg.NewProduceResponseTopicPartition()
				of.Partition = p.Partition
				to.Partitions = append(to.Partitions, of)
			}
			out.Topics = append(out.Topics, to)
		}
		return out, nil, true
	})
	kafka := &receiver{config: sink.Config{Type: sink.Kafka, Brokers: cluster.ListenAddrs(), Topic: "audit", Plain: true}}
	file := fileReceiver(t)
	file.config.MaxSize, file.config.Keep = 100<<20, 1
	syslog := syslogReceiver(t)
	syslog.forgets = true
	return append(list, es, kafka, file, syslog)
}

// All sinks at once take a day's records within 256 MB of memory, of which this process
// also has the receivers: SALLYPORT_DAY=1000000 is a day.
func TestDay(t *testing.T) {
	n := 4000
	if s := os.Getenv("SALLYPORT_DAY"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	all := forgetful(t)
	l := newTrail(t, all[0])
	var configs []sink.Config
	secrets := map[string]map[string]string{}
	for _, r := range all {
		c := r.config
		c.Name, c.Encoding, c.Bound = c.Type, "ocsf", 1<<40
		c.Batch = sink.Batch{Events: 500, Bytes: 1 << 20, Wait: 100 * time.Millisecond}
		if c.Type == sink.S3 {
			c.Batch = sink.Batch{Events: 100_000, Bytes: 4 << 20, Wait: 100 * time.Millisecond}
		}
		configs, secrets[c.Name] = append(configs, c), r.secret
	}
	o := l.options()
	o.Secret = func(_ context.Context, c sink.Config) (map[string]string, error) { return secrets[c.Name], nil }
	o.Hurry(time.Millisecond, time.Minute)
	l.set = sink.NewSet(o)
	plan, err := l.set.Prepare(t.Context(), configs)
	must.OK(t, err)
	l.set.Use(plan)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = l.set.Run(ctx) }()
	defer func() { cancel(); <-done }()
	var most atomic.Uint64
	go func() {
		for ctx.Err() == nil {
			most.Store(max(most.Load(), resident(t)))
			time.Sleep(20 * time.Millisecond)
		}
	}()
	began := time.Now()
	for sent := 0; sent < n; {
		events := make([]*audit.Event, min(500, n-sent))
		for i := range events {
			e := audit.New(audit.KindDecision, audit.ClassHTTP, 3)
			e.Message = strings.Repeat("x", 400)
			events[i] = e
		}
		must.OK(t, l.log.Append(t.Context(), events...))
		sent += len(events)
	}
	last := func() uint64 { at, _ := l.set.Shipped(); return at }
	for last() < uint64(n) {
		time.Sleep(20 * time.Millisecond)
		if time.Since(began) > 20*time.Minute {
			t.Fatalf("%+v", l.set.Status())
		}
	}
	t.Logf("%d records through %d sinks in %v, at most %d MiB resident", n, len(configs), time.Since(began).Round(time.Millisecond), most.Load()>>20)
	if most.Load() > 256<<20 {
		t.Errorf("%d bytes resident", most.Load())
	}
	for _, s := range l.set.Status() {
		if s.Refused+s.Lost > 0 || s.Retries > 0 {
			t.Errorf("%+v", s)
		}
	}
	files, err := filepath.Glob(filepath.Join(l.dir, "dead", "*"))
	if err != nil || len(files) > 0 {
		t.Errorf("%q, %v", files, err)
	}
}

// resident is the memory of this process, in bytes.
func resident(t *testing.T) uint64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Error(err)
		return 0
	}
	f := bytes.Fields(text)
	n, _ := strconv.ParseUint(string(f[1]), 10, 64)
	return n * uint64(os.Getpagesize())
}
