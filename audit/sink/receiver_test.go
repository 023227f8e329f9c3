package sink_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rclone/gofakes3"
	"github.com/rclone/gofakes3/s3mem"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/proto"

	"sallyport/audit/sink"
	"sallyport/internal/test/must"
	"sallyport/internal/webhook/signature"
)

// receiver is what a sink sends to.
type receiver struct {
	config sink.Config
	secret map[string]string
	// refuse has it answer with a status of HTTP, or what its protocol has for that; 0
	// ends that. It is nil where the protocol has no such answer.
	refuse    func(status int)
	read      func(t *testing.T) []string // the records that it has, as they came
	unindexed atomic.Bool                 // splunk acknowledges nothing
	also      string                      // what https refuses besides poison

	forgets bool // what it takes

	mu  sync.Mutex
	got []string
}

func (r *receiver) take(records ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.forgets {
		return
	}
	r.got = append(r.got, records...)
}

func (r *receiver) taken(*testing.T) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.got...)
}

// rootOf is the authority of a test's server.
func rootOf(s *httptest.Server) sink.TLS {
	return sink.TLS{Roots: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})}
}

// overHTTP is a receiver with a handler over TLS, before which it may refuse.
func overHTTP(t *testing.T, r *receiver, h http.Handler) *httptest.Server {
	var status atomic.Int64
	r.refuse = func(n int) { status.Store(int64(n)) }
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if n := status.Load(); n != 0 {
			_, _ = io.Copy(io.Discard, q.Body)
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(int(n))
			return
		}
		h.ServeHTTP(w, q)
	}))
	t.Cleanup(s.Close)
	r.config.URL, r.config.TLS = s.URL, rootOf(s)
	if r.read == nil {
		r.read = r.taken
	}
	return s
}

func problem(w http.ResponseWriter, status int, text string) { http.Error(w, text, status) }

// splunkReceiver is written from Splunk's "Format events for HTTP Event Collector" and
// "About HTTP Event Collector Indexer Acknowledgment".
func splunkReceiver(t *testing.T) *receiver {
	r := &receiver{config: sink.Config{Type: sink.Splunk, Credential: "hec", Index: "audit"}, secret: map[string]string{"token": "B5A79AAD-D822-46CC-80D1-819F80D7BFB0"}}
	var mu sync.Mutex
	asked := map[int]int{}
	next := 0
	mux := http.NewServeMux()
	check := func(w http.ResponseWriter, q *http.Request) bool {
		if q.Header.Get("Authorization") != "Splunk "+r.secret["token"] {
			problem(w, 403, `{"text":"Invalid token","code":4}`)
			return false
		}
		if q.Header.Get("X-Splunk-Request-Channel") == "" {
			problem(w, 400, `{"text":"Data channel is missing","code":10}`)
			return false
		}
		return true
	}
	mux.HandleFunc("POST /services/collector/event", func(w http.ResponseWriter, q *http.Request) {
		if !check(w, q) {
			return
		}
		var records []string
		for d := json.NewDecoder(q.Body); ; {
			var e struct {
				Time  float64         `json:"time"`
				Index string          `json:"index"`
				Event json.RawMessage `json:"event"`
			}
			if err := d.Decode(&e); err == io.EOF {
				break
			} else if err != nil || e.Event == nil || e.Time == 0 || e.Index != "audit" {
				problem(w, 400, fmt.Sprintf(`{"text":"Invalid data format","code":6,"invalid-event-number":%d}`, len(records)))
				return
			}
			if strings.Contains(string(e.Event), poison) {
				problem(w, 400, fmt.Sprintf(`{"text":"Invalid data format","code":6,"invalid-event-number":%d}`, len(records)))
				return
			}
			records = append(records, string(e.Event))
		}
		r.take(records...)
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(w, `{"text":"Success","code":0,"ackId":%d}`, next)
		next++
	})
	mux.HandleFunc("POST /services/collector/ack", func(w http.ResponseWriter, q *http.Request) {
		if !check(w, q) {
			return
		}
		var in struct{ Acks []int }
		if err := json.NewDecoder(q.Body).Decode(&in); err != nil {
			problem(w, 400, err.Error())
			return
		}
		mu.Lock()
		defer mu.Unlock()
		out := map[string]bool{}
		for _, a := range in.Acks { // on the second question, and again on each later one
			asked[a]++
			out[strconv.Itoa(a)] = asked[a] > 1 && !r.unindexed.Load()
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"acks": out})
	})
	overHTTP(t, r, mux)
	return r
}

// elasticsearchReceiver is written from "Bulk index or delete documents" in
// Elasticsearch's API documentation.
func elasticsearchReceiver(t *testing.T) *receiver {
	r := &receiver{config: sink.Config{Type: sink.Elasticsearch, Index: "audit", Credential: "es"}, secret: map[string]string{"apiKey": "a2V5OnNlY3JldA=="}}
	overHTTP(t, r, bulkHandler(r, "ApiKey a2V5OnNlY3JldA=="))
	return r
}

func bulkHandler(r *receiver, authorization string) http.Handler {
	var mu sync.Mutex
	docs := map[string]bool{}
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path != "/_bulk" || q.Method != http.MethodPost || q.Header.Get("Authorization") != authorization {
			problem(w, 401, `{"error":{"type":"security_exception"}}`)
			return
		}
		body, _ := io.ReadAll(q.Body)
		if !bytes.HasSuffix(body, []byte("\n")) {
			problem(w, 400, `{"error":{"reason":"The bulk request must be terminated by a newline [\\n]"}}`)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		type result struct {
			Status int            `json:"status"`
			Error  map[string]any `json:"error,omitempty"`
		}
		var items []map[string]result
		failed := false
		parts := strings.Split(strings.TrimSuffix(string(body), "\n"), "\n")
		for i := 0; i+1 < len(parts); i += 2 {
			var action map[string]struct {
				Index string `json:"_index"`
				ID    string `json:"_id"`
			}
			if err := json.Unmarshal([]byte(parts[i]), &action); err != nil {
				problem(w, 400, err.Error())
				return
			}
			for op, to := range action {
				res := result{Status: 201}
				switch {
				case to.Index != "audit":
					res = result{404, map[string]any{"type": "index_not_found_exception", "reason": to.Index}}
				case strings.Contains(parts[i+1], poison) || !json.Valid([]byte(parts[i+1])):
					res = result{400, map[string]any{"type": "document_parsing_exception", "reason": "failed to parse"}}
				case to.ID != "" && docs[to.ID] && op == "create":
					res = result{409, map[string]any{"type": "version_conflict_engine_exception", "reason": "document already exists"}}
				default:
					docs[to.ID] = true
					r.take(parts[i+1])
				}
				failed = failed || res.Status >= 300
				items = append(items, map[string]result{op: res})
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"errors": failed, "items": items})
	})
}

// otlpReceiver is written from the OTLP specification ("OTLP/HTTP"). The real collector
// is tried in the module collector beside this package.
func otlpReceiver(t *testing.T) *receiver {
	r := &receiver{config: sink.Config{Type: sink.OTLP}}
	overHTTP(t, r, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		var in logs.LogsData
		if q.Header.Get("Content-Type") != "application/x-protobuf" || proto.Unmarshal(body, &in) != nil {
			problem(w, 400, "not OTLP")
			return
		}
		var records []string
		rejected := 0
		for _, l := range in.ResourceLogs[0].ScopeLogs[0].LogRecords {
			if text := l.Body.GetStringValue(); strings.Contains(text, poison) {
				rejected++
			} else {
				records = append(records, text)
			}
		}
		r.take(records...)
		w.Header().Set("Content-Type", "application/x-protobuf")
		if rejected > 0 { // ExportLogsPartialSuccess in field 1
			inner := append([]byte{0x08, byte(rejected), 0x12, 3}, "bad"...)
			_, _ = w.Write(append([]byte{0x0a, byte(len(inner))}, inner...))
		}
	}))
	r.config.URL += "/v1/logs"
	return r
}

// httpsReceiver verifies signatures as Standard Webhooks says.
func httpsReceiver(t *testing.T) *receiver {
	r := &receiver{config: sink.Config{Type: sink.HTTPS, Credential: "hook"}, secret: map[string]string{"secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}}
	key, err := signature.ParseSecret(r.secret["secret"])
	must.OK(t, err)
	overHTTP(t, r, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		if q.Header.Get("Webhook-Signature") != signature.Sign(key, q.Header.Get("Webhook-Id"), q.Header.Get("Webhook-Timestamp"), body) {
			problem(w, 401, "not signed")
			return
		}
		if bytes.Contains(body, []byte(poison)) || r.also != "" && bytes.Contains(body, []byte(r.also)) {
			problem(w, 422, "a record is not acceptable")
			return
		}
		r.take(strings.Split(strings.TrimSuffix(string(body), "\n"), "\n")...)
		w.WriteHeader(http.StatusNoContent)
	}))
	return r
}

// s3Receiver verifies signatures of version 4 (rclone/gofakes3).
func s3Receiver(t *testing.T) *receiver {
	r := &receiver{config: sink.Config{Type: sink.S3, Credential: "s3", Bucket: "audit", Prefix: "sallyport/", Region: "us-east-1"},
		secret: map[string]string{"accessKeyID": "AKIAEXAMPLE", "secretAccessKey": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}}
	backend := s3mem.New()
	must.OK(t, backend.CreateBucket(t.Context(), "audit"))
	fake := gofakes3.New(backend, gofakes3.WithV4Auth(map[string]string{r.secret["accessKeyID"]: r.secret["secretAccessKey"]}))
	r.read = func(t *testing.T) (records []string) {
		list, err := backend.ListBucket(context.Background(), "audit", &gofakes3.Prefix{}, gofakes3.ListBucketPage{})
		must.OK(t, err)
		for _, o := range list.Contents {
			object, err := backend.GetObject(context.Background(), "audit", o.Key, nil)
			must.OK(t, err)
			z, err := gzip.NewReader(object.Contents)
			must.OK(t, err)
			text, err := io.ReadAll(z)
			must.OK(t, err)
			records = append(records, strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")...)
		}
		return records
	}
	overHTTP(t, r, fake.Server())
	return r
}

// kafkaReceiver is franz-go's kfake, which speaks Kafka's protocol.
func kafkaReceiver(t *testing.T) *receiver {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, "audit"), kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", "sallyport", "a password"))
	must.OK(t, err)
	t.Cleanup(cluster.Close)
	r := &receiver{config: sink.Config{Type: sink.Kafka, Brokers: cluster.ListenAddrs(), Topic: "audit", SASL: "scram-sha-512", Credential: "kafka", Plain: true},
		secret: map[string]string{"username": "sallyport", "password": "a password"}}
	var status atomic.Int64
	r.refuse = func(n int) { status.Store(int64(n)) }
	cluster.ControlKey(int16(kmsg.Produce), func(q kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		if status.Load() == 0 {
			return nil, nil, false
		}
		in := q.(*kmsg.ProduceRequest)
		out := in.ResponseKind().(*kmsg.ProduceResponse)
		for _, topic := range in.Topics {
			to := kmsg.NewProduceResponseTopic()
			to.Topic, to.TopicID = topic.Topic, topic.TopicID
			for _, p := range topic.Partitions {
				of := kmsg.NewProduceResponseTopicPartition()
				of.Partition, of.ErrorCode = p.Partition, kerr.NotEnoughReplicas.Code
				to.Partitions = append(to.Partitions, of)
			}
			out.Topics = append(out.Topics, to)
		}
		return out, nil, true
	})
	r.read = func(t *testing.T) (records []string) {
		client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics("audit"), kgo.SASL(sink.Login("scram-sha-512", r.secret)))
		must.OK(t, err)
		defer client.Close()
		ends := int64(0)
		for p := range int32(3) {
			ends += cluster.PartitionInfo("audit", p).HighWatermark
		}
		for int64(len(records)) < ends && t.Context().Err() == nil {
			client.PollFetches(t.Context()).EachRecord(func(k *kgo.Record) { records = append(records, string(k.Value)) })
		}
		return records
	}
	return r
}

func fileReceiver(t *testing.T) *receiver {
	dir := t.TempDir()
	r := &receiver{config: sink.Config{Type: sink.File, Path: filepath.Join(dir, "audit.jsonl"), MaxSize: 1 << 20, Keep: 3}}
	r.read = func(t *testing.T) (records []string) {
		files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
		must.OK(t, err)
		for _, f := range files {
			b, err := os.ReadFile(f)
			must.OK(t, err)
			for line := range strings.Lines(string(b)) {
				records = append(records, strings.TrimSuffix(line, "\n"))
			}
		}
		return records
	}
	return r
}

// syslogReceiver reads octet counting (RFC 6587, 3.4.1) over TCP. It takes a message
// when it has read all of it.
func syslogReceiver(t *testing.T) *receiver {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	return syslogReceiverAt(t, l)
}

func syslogReceiverAt(t *testing.T, l net.Listener) *receiver {
	r := &receiver{config: sink.Config{Type: sink.Syslog, Address: l.Addr().String(), Plain: true}}
	r.read = r.taken
	var work sync.WaitGroup
	work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				for {
					length, err := in.ReadString(' ')
					if err != nil {
						return
					}
					n, err := strconv.Atoi(strings.TrimSpace(length))
					if err != nil {
						return
					}
					message := make([]byte, n)
					if _, err := io.ReadFull(in, message); err != nil {
						return
					}
					// <PRI>1 TIME HOST APP PROCID MSGID [SD] MSG
					f := strings.SplitN(string(message), " ", 9)
					r.take(f[8])
				}
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); work.Wait() })
	return r
}
