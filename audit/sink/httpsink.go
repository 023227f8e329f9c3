package sink

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"sallyport/internal/webhook/signature"
)

// httpsSink posts NDJSON, signed as Standard Webhooks are if there is a credential: the
// field secret has whsec_ and Base64.
type httpsSink struct {
	*poster
	url    string
	secret Secret
}

func openHTTPS(c Config, secret Secret, dial Dial) (Protocol, error) {
	p, err := newPoster(c, nil, dial, nil)
	return &httpsSink{p, c.URL, secret}, err
}

func (s *httpsSink) Send(ctx context.Context, batch []Item) (Answer, error) {
	body := lines(batch)
	// The same batch has the same identifier.
	id := fmt.Sprintf("%s-%d", batch[0].UID, batch[len(batch)-1].Sequence)
	h := http.Header{"Content-Type": {"application/x-ndjson"}, "Webhook-Id": {id}}
	if s.secret != nil {
		fields, err := s.secret(ctx)
		if err != nil {
			return Answer{}, err
		}
		text, err := field(fields, "secret")
		if err != nil {
			return Answer{}, err
		}
		key, err := signature.ParseSecret(text)
		if err != nil {
			return Answer{}, err
		}
		stamp := strconv.FormatInt(time.Now().Unix(), 10)
		h.Set("Webhook-Timestamp", stamp)
		h.Set("Webhook-Signature", signature.Sign(key, id, stamp, body))
	}
	text, _, err := s.post(ctx, s.url, h, body)
	return Answer{Text: text}, err
}
