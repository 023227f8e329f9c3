package sink

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// elasticsearchSink uses the bulk API of Elasticsearch and OpenSearch. A document has its
// record's uid as _id and is created, so that a repeat makes no second one.
type elasticsearchSink struct {
	*poster
	url, index string
}

func openElasticsearch(c Config, secret Secret, dial Dial) (Protocol, error) {
	p, err := newPoster(c, secret, dial, func(h http.Header, fields map[string]string) error {
		if user, password := fields["username"], fields["password"]; user != "" && password != "" {
			h.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user+":"+password)))
			return nil
		}
		key, err := field(fields, "apiKey")
		h.Set("Authorization", "ApiKey "+key)
		return err
	})
	return &elasticsearchSink{p, strings.TrimSuffix(c.URL, "/"), c.Index}, err
}

func (s *elasticsearchSink) Send(ctx context.Context, batch []Item) (Answer, error) {
	var body []byte
	index := string(quoted(s.index))
	for _, i := range batch {
		body = fmt.Appendf(body, `{"create":{"_index":%s,"_id":%s}}`+"\n", index, quoted(i.UID))
		if doc := object(i.Data); doc[0] == '{' {
			body = append(body, doc...)
		} else {
			body = fmt.Appendf(body, `{"@timestamp":%d,"message":%s}`, i.Time, doc)
		}
		body = append(body, '\n')
	}
	text, reply, err := s.post(ctx, s.url+"/_bulk?filter_path=errors,items.*.status,items.*.error.type,items.*.error.reason",
		http.Header{"Content-Type": {"application/x-ndjson"}}, body)
	if err != nil {
		return Answer{}, err
	}
	var r struct {
		Errors *bool `json:"errors"`
		Items  []map[string]struct {
			Status int `json:"status"`
			Error  struct {
				Type   string `json:"type"`
				Reason string `json:"reason"`
			} `json:"error"`
		} `json:"items"`
	}
	if err := json.Unmarshal(reply, &r); err != nil {
		return Answer{}, fmt.Errorf("%s: the answer is no JSON: %w", text, err)
	}
	if r.Errors == nil || *r.Errors && len(r.Items) != len(batch) {
		return Answer{}, fmt.Errorf("%s: the answer is about %d records of %d", text, len(r.Items), len(batch))
	}
	a := Answer{Text: text, Refused: map[int]string{}, Again: map[int]string{}}
	for n, item := range r.Items {
		for _, op := range item {
			reason := fmt.Sprintf("%d %s: %s", op.Status, op.Error.Type, op.Error.Reason)
			switch {
			case op.Status/100 == 2 || op.Status == http.StatusConflict: // it has the document already
			case op.Status == http.StatusBadRequest || op.Status == http.StatusRequestEntityTooLarge:
				a.Refused[n] = reason
			default:
				a.Again[n] = reason
			}
		}
	}
	return a, nil
}

func quoted(s string) []byte {
	b, _ := json.Marshal(s) // text always has an encoding
	return b
}
