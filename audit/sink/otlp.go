package sink

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	common "go.opentelemetry.io/proto/otlp/common/v1"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	resource "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"sallyport/audit"
)

// otlpSink sends log records by OTLP/HTTP (OTLP specification 1.9, "OTLP/HTTP Request").
// LogsData has the encoding of ExportLogsServiceRequest, whose package would bring gRPC.
type otlpSink struct {
	*poster
	url      string
	resource *resource.Resource
}

func openOTLP(c Config, secret Secret, dial Dial) (Protocol, error) {
	p, err := newPoster(c, secret, dial, func(h http.Header, fields map[string]string) error {
		token, err := field(fields, "token")
		h.Set("Authorization", "Bearer "+token)
		return err
	})
	host, _ := os.Hostname()
	return &otlpSink{p, c.URL, &resource.Resource{Attributes: []*common.KeyValue{text("service.name", "sallyport"), text("host.name", host)}}}, err
}

func text(key, value string) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: value}}}
}

var otlpSeverity = map[audit.Severity]logs.SeverityNumber{
	audit.SeverityInformational: logs.SeverityNumber_SEVERITY_NUMBER_INFO,
	audit.SeverityLow:           logs.SeverityNumber_SEVERITY_NUMBER_INFO2,
	audit.SeverityMedium:        logs.SeverityNumber_SEVERITY_NUMBER_WARN,
	audit.SeverityHigh:          logs.SeverityNumber_SEVERITY_NUMBER_ERROR,
	audit.SeverityCritical:      logs.SeverityNumber_SEVERITY_NUMBER_FATAL,
}

func (s *otlpSink) Send(ctx context.Context, batch []Item) (Answer, error) {
	records := make([]*logs.LogRecord, len(batch))
	now := uint64(time.Now().UnixNano())
	for n, i := range batch {
		records[n] = &logs.LogRecord{
			TimeUnixNano: uint64(i.Time) * 1e6, ObservedTimeUnixNano: now,
			SeverityNumber: otlpSeverity[i.Severity],
			Body:           &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: string(i.Data)}},
			Attributes: []*common.KeyValue{
				text("log.record.uid", i.UID),
				{Key: "sallyport.sequence", Value: &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: int64(i.Sequence)}}},
			},
		}
	}
	body, err := proto.Marshal(&logs.LogsData{ResourceLogs: []*logs.ResourceLogs{{
		Resource: s.resource, ScopeLogs: []*logs.ScopeLogs{{Scope: &common.InstrumentationScope{Name: "sallyport/audit"}, LogRecords: records}},
	}}})
	if err != nil {
		return Answer{}, err
	}
	text, reply, err := s.post(ctx, s.url, http.Header{"Content-Type": {"application/x-protobuf"}}, body)
	if err != nil {
		return Answer{}, err
	}
	rejected, message, err := partialSuccess(reply)
	switch {
	case err != nil:
		return Answer{}, fmt.Errorf("%s: the answer: %w", text, err)
	case rejected > 0: // and it does not say which
		return Answer{}, &RefusedError{fmt.Sprintf("%s: %d records were rejected: %s", text, rejected, message)}
	case message != "":
		text += ": " + message
	}
	return Answer{Text: text}, nil
}

// partialSuccess reads ExportLogsServiceResponse: field 1 is ExportLogsPartialSuccess,
// with rejected_log_records (1) and error_message (2).
func partialSuccess(reply []byte) (rejected int64, message string, err error) {
	var inner []byte
	err = protoFields(reply, func(number protowire.Number, kind protowire.Type, value []byte) {
		if number == 1 && kind == protowire.BytesType {
			inner, _ = protowire.ConsumeBytes(value)
		}
	})
	return rejected, message, errors.Join(err, protoFields(inner, func(number protowire.Number, kind protowire.Type, value []byte) {
		switch {
		case number == 1 && kind == protowire.VarintType:
			n, _ := protowire.ConsumeVarint(value)
			rejected = int64(n)
		case number == 2 && kind == protowire.BytesType:
			b, _ := protowire.ConsumeBytes(value)
			message = excerpt(b, nil)
		}
	}))
}

// protoFields calls f with each field of a message and its encoded value.
func protoFields(b []byte, f func(protowire.Number, protowire.Type, []byte)) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return protowire.ParseError(n)
		}
		f(number, kind, b[:n])
		b = b[n:]
	}
	return nil
}
