package meter_test

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"

	"sallyport/gateway/meter"
)

// The reading does not depend on the pieces that a body comes in, no number is less than
// nothing, and a text taken for whole JSON is that to encoding/json too.
func FuzzReader(f *testing.F) {
	f.Add(false, []byte(`{"model":"gpt-5","usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,"prompt_tokens_details":{"cached_tokens":4}}}`), uint8(3))
	f.Add(false, []byte(`{"usage":{"input_tokens":25,"cache_read_input_tokens":-1,"cache_creation_input_tokens":99999999999999999999,"output_tokens":1.5e3}}`), uint8(1))
	f.Add(false, []byte(`[{"usageMetadata":{"promptTokenCount":1,"thoughtsTokenCount":2}},{"usageMetadata":{"candidatesTokenCount":1}}]`), uint8(7))
	f.Add(false, []byte(`{"x":"\ud83d\ude00\"","usage":{"usage":{}}} {"message":{"usage":{"inputTokens":1}}}`), uint8(2))
	f.Add(true, []byte("event: a\r\ndata: {\"type\":\"message_stop\",\"response\":{\"usage\":{\"input_tokens\":1}}}\r\n\r\n: x\n\ndata:[1,\ndata: 2]\n\ndata: [DONE]\n\n"), uint8(5))
	f.Add(true, []byte("\xef\xbb\xbfdata: {\"choices\":[{\"delta\":{\"content\":\"abc\"}}]}\r\rdata: {\"usage\":{\"prompt_tokens\":1\n\n"), uint8(1))
	f.Fuzz(func(t *testing.T, stream bool, body []byte, piece uint8) {
		kind := plain
		if stream {
			kind = events
		}
		whole := read(kind, string(body), max(len(body), 1), true)
		cut := read(kind, string(body), int(piece)+1, true)
		if whole != cut {
			t.Errorf("whole %+v, in pieces of %d %+v", whole, int(piece)+1, cut)
		}
		early := read(kind, string(body), len(body)+1, false)
		if early.In > whole.In || early.Cached > whole.Cached || early.Final && !whole.Final {
			t.Errorf("without its end %+v, with it %+v", early, whole)
		}
		if whole.In < 0 || whole.Out < 0 || whole.Cached < 0 || whole.CacheWrite < 0 || whole.Cached+whole.CacheWrite > whole.In ||
			whole.In > 1<<43 || whole.Out > 1<<43 || whole.Text < 0 || whole.Text > 16*int64(len(body)) {
			t.Errorf("%+v of %d bytes", whole, len(body))
		}
		if stream || !whole.Final {
			return
		}
		for d := json.NewDecoder(bytes.NewReader(body)); ; {
			var v json.RawMessage
			if err := d.Decode(&v); err == io.EOF {
				return
			} else if err != nil {
				t.Fatalf("%q is whole, but for %v", body, err)
			}
		}
	})
}

// The model that encoding/json finds, where letter case does not matter, is among
// those that a request is taken to be for.
func FuzzAsk(f *testing.F) {
	f.Add([]byte(`{"model":"gpt-5","messages":[{"role":"user","content":"x"}],"stream":true}`), uint8(1))
	f.Add([]byte(`{"mod\u0065l":"a","MODEL":"b","n":[0.5,-1e9,null]}`), uint8(3))
	f.Add([]byte(`{"metadata":{"model":"x"},"model":"\u0061"}`), uint8(9))
	f.Fuzz(func(t *testing.T, body []byte, piece uint8) {
		a := meter.NewAsk()
		for part := range slices.Chunk(body, int(piece)+1) {
			a.Write(part)
		}
		models, err := a.Models()
		if err != nil {
			return
		}
		var v struct{ Model string }
		if err := json.Unmarshal(body, &v); err != nil {
			t.Fatalf("%q names %v, but for %v", body, models, err)
		}
		if !slices.Contains(models, v.Model) {
			t.Errorf("%q names %q, not %v", body, v.Model, models)
		}
		if slices.ContainsFunc(models, func(m string) bool { return m == "" || strings.ContainsAny(m, "\x00\n\" ") }) {
			t.Errorf("%q", models)
		}
	})
}
