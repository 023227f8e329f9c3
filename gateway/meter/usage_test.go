package meter_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/gateway/meter"
)

func read(kind, body string, piece int, whole bool) meter.Report {
	r := meter.NewReader(kind)
	for len(body) > 0 {
		n := min(piece, len(body))
		r.Write([]byte(body[:n]))
		body = body[n:]
	}
	if whole {
		r.End()
	}
	return r.Report()
}

const (
	plain  = "application/json"
	events = "text/event-stream; charset=utf-8"
)

// The shapes follow each provider's reference, with what models write in the way.
func TestProviders(t *testing.T) {
	tests := []struct {
		name, kind, body string
		want             meter.Tokens
		model            string
	}{
		{"OpenAI chat", plain, `{"id":"chatcmpl-1","object":"chat.completion","created":1741569952,"model":"gpt-5-2025-08-07",
"choices":[{"index":0,"message":{"role":"assistant","content":"{\"usage\":{\"prompt_tokens\":1}} \"usage\": {\"total_tokens\": 9e9","refusal":null,"annotations":[]},"logprobs":null,"finish_reason":"stop"}],
"usage":{"prompt_tokens":1900,"completion_tokens":10,"total_tokens":1910,"prompt_tokens_details":{"cached_tokens":1024,"audio_tokens":0},
"completion_tokens_details":{"reasoning_tokens":4,"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}},"service_tier":"default"}`,
			meter.Tokens{In: 1900, Out: 10, Cached: 1024}, "gpt-5-2025-08-07"},
		{"OpenAI chat, streamed", events, `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","model":"gpt-5","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","model":"gpt-5","choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":null}],"usage":null}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","model":"gpt-5","choices":[],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29}}

data: [DONE]

`, meter.Tokens{In: 19, Out: 10}, "gpt-5"},
		{"OpenAI completions", plain, `{"object":"text_completion","model":"gpt-3.5-turbo-instruct","choices":[{"text":"x"}],"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}}`,
			meter.Tokens{In: 5, Out: 7}, "gpt-3.5-turbo-instruct"},
		{"OpenAI embeddings", plain, `{"object":"list","data":[{"object":"embedding","embedding":[0.0023,-0.009,1e-5],"index":0}],"model":"text-embedding-3-small","usage":{"prompt_tokens":8,"total_tokens":8}}`,
			meter.Tokens{In: 8}, "text-embedding-3-small"},
		{"OpenAI responses", plain, `{"id":"resp_1","object":"response","status":"completed","model":"gpt-5","output":[{"type":"message","content":[{"type":"output_text","text":"x","usage":{"input_tokens":1}}]}],
"usage":{"input_tokens":36,"input_tokens_details":{"cached_tokens":6},"output_tokens":87,"output_tokens_details":{"reasoning_tokens":70},"total_tokens":123},"metadata":{"usage":"no"}}`,
			meter.Tokens{In: 36, Out: 87, Cached: 6}, "gpt-5"},
		{"OpenAI responses, streamed", events, "event: response.created\r\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\",\"model\":\"gpt-5\",\"usage\":null}}\r\n\r\n" +
			"event: response.output_text.delta\r\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"Hi\"}\r\n\r\n" +
			"event: response.completed\r\ndata: {\"type\":\"response.completed\",\"response\":{\"model\":\"gpt-5\",\"usage\":{\"input_tokens\":37,\"input_tokens_details\":{\"cached_tokens\":7},\"output_tokens\":11,\"total_tokens\":48}}}\r\n\r\n",
			meter.Tokens{In: 37, Out: 11, Cached: 7}, "gpt-5"},
		{"Anthropic", plain, `{"id":"msg_1","type":"message","role":"assistant","model":"claude-sonnet-4-5","content":[{"type":"text","text":"Hi!"}],"stop_reason":"end_turn","stop_sequence":null,
"usage":{"input_tokens":2095,"cache_creation_input_tokens":300,"cache_read_input_tokens":1000,"cache_creation":{"ephemeral_5m_input_tokens":300,"ephemeral_1h_input_tokens":0},"output_tokens":503,"server_tool_use":{"web_search_requests":1}}}`,
			meter.Tokens{In: 3395, Out: 503, Cached: 1000, CacheWrite: 300}, "claude-sonnet-4-5"},
		{"Anthropic, streamed", events, `event: message_start
data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"model":"claude-sonnet-4-5","stop_reason":null,"usage":{"input_tokens":25,"cache_read_input_tokens":5,"output_tokens":1}}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}

event: ping
data: {"type": "ping"}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":9}}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"input_tokens":25,"output_tokens":15}}

event: message_stop
data: {"type":"message_stop"}

`, meter.Tokens{In: 30, Out: 15, Cached: 5}, "claude-sonnet-4-5"},
		{"Gemini", plain, `{"candidates":[{"content":{"parts":[{"text":"x"}],"role":"model"},"finishReason":"STOP"}],
"usageMetadata":{"promptTokenCount":100,"candidatesTokenCount":20,"totalTokenCount":160,"cachedContentTokenCount":30,"thoughtsTokenCount":35,"toolUsePromptTokenCount":5,"promptTokensDetails":[{"modality":"TEXT","tokenCount":999}]},"modelVersion":"gemini-2.5-flash"}`,
			meter.Tokens{In: 105, Out: 55, Cached: 30}, "gemini-2.5-flash"},
		{"Gemini, streamed as an array", plain, `[{"candidates":[{"content":{"parts":[{"text":"a"}]}}],"usageMetadata":{"promptTokenCount":10,"candidatesTokenCount":2,"totalTokenCount":12},"modelVersion":"gemini-2.5-pro"}
,
{"candidates":[{"content":{"parts":[{"text":"b"}]}}],"usageMetadata":{"promptTokenCount":10,"candidatesTokenCount":7,"totalTokenCount":17},"modelVersion":"gemini-2.5-pro"}]`,
			meter.Tokens{In: 10, Out: 7}, "gemini-2.5-pro"},
		{"Gemini, as OpenAI: thoughts in the total only", plain, `{"model":"gemini-2.5-pro","usage":{"prompt_tokens":10,"completion_tokens":7,"total_tokens":117}}`,
			meter.Tokens{In: 10, Out: 107}, "gemini-2.5-pro"},
		{"Mistral, streamed", events, "data: {\"model\":\"mistral-small-latest\",\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\ndata: {\"model\":\"mistral-small-latest\",\"choices\":[{\"delta\":{\"content\":\"\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":16,\"total_tokens\":50,\"completion_tokens\":34}}\n\ndata: [DONE]\n\n",
			meter.Tokens{In: 16, Out: 34}, "mistral-small-latest"},
		{"Groq, streamed", events, "data: {\"model\":\"llama\",\"choices\":[],\"x_groq\":{\"id\":\"req_1\",\"usage\":{\"prompt_tokens\":16,\"completion_tokens\":34,\"total_tokens\":50}}}\n\ndata: [DONE]\n\n",
			meter.Tokens{In: 16, Out: 34}, "llama"},
		{"Bedrock's Converse", plain, `{"output":{"message":{"role":"assistant","content":[{"text":"x"}]}},"stopReason":"end_turn","usage":{"inputTokens":125,"outputTokens":60,"totalTokens":185}}`,
			meter.Tokens{In: 125, Out: 60}, ""},
		{"an event in several lines", events, "\xef\xbb\xbfdata: {\"usage\":\rdata:{\"prompt_tokens\":3,\rdata: \"completion_tokens\":4}}\r\r", meter.Tokens{In: 3, Out: 4}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for _, piece := range []int{1, 2, 7, 1 << 20} {
				got := read(test.kind, test.body, piece, true)
				got.Text = 0
				want := meter.Report{Tokens: test.want, Model: test.model, Reported: true, Final: true}
				if diff := cmp.Diff(got, want); diff != "" {
					t.Errorf("in pieces of %d: %s", piece, diff)
				}
			}
		})
	}
}

// A text that is no report, or a bad one, is not taken for a final one; a number that was
// reported before is not taken back.
func TestHostile(t *testing.T) {
	tests := []struct {
		name, kind, body string
		in, out          int64
		final            bool
	}{
		{"negative", plain, `{"usage":{"prompt_tokens":-5,"completion_tokens":3}}`, 0, 3, false},
		{"a fraction", plain, `{"usage":{"prompt_tokens":5,"completion_tokens":3e2}}`, 5, 0, false},
		{"text", plain, `{"usage":{"prompt_tokens":5,"completion_tokens":"3"}}`, 5, 0, false},
		{"huge", plain, `{"usage":{"prompt_tokens":99999999999999999999999999,"completion_tokens":3}}`, 1 << 40, 3, true},
		{"too long for a number", plain, `{"usage":{"prompt_tokens":` + strings.Repeat("9", 200) + `,"completion_tokens":3}}`, 0, 0, false},
		{"twice", plain, `{"usage":{"prompt_tokens":50,"prompt_tokens":1},"usage":{"prompt_tokens":2}}`, 50, 0, true},
		{"later less", events, "data: {\"usage\":{\"prompt_tokens\":50,\"completion_tokens\":7}}\n\ndata: {\"usage\":{\"prompt_tokens\":0,\"completion_tokens\":0}}\n\n", 50, 7, true},
		{"zero", plain, `{"usage":{"prompt_tokens":0,"completion_tokens":0}}`, 0, 0, true},
		{"elsewhere", plain, `{"choices":[{"usage":{"prompt_tokens":1}}],"metadata":{"usage":{"prompt_tokens":1}},"x":{"message":{"usage":{"prompt_tokens":1}}},"usage":[{"prompt_tokens":1}]}`, 0, 0, true},
		{"in a string", plain, `{"content":"\\\",\"usage\":{\"prompt_tokens\":1}}"}`, 0, 0, true},
		{"cut", plain, `{"usage":{"prompt_tokens":5,"completion_tokens":3}`, 0, 0, false},
		{"not JSON", plain, `{"usage":{"prompt_tokens":5,}}`, 0, 0, false},
		{"not JSON in an event", events, "data: {\"usage\":{\"prompt_tokens\":5}\n\n", 0, 0, true},
		{"deep", plain, strings.Repeat("[", 300), 0, 0, false},
		{"another type", "text/plain", `{"usage":{"prompt_tokens":5}}`, 0, 0, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := read(test.kind, test.body, 3, true)
			if got.In != test.in || got.Out != test.out || got.Final != test.final || got.Reported != (test.in+test.out > 0) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// A client that goes before the end leaves a report that is none, or not final.
func TestCut(t *testing.T) {
	start := "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\n"
	text := "data: {\"type\":\"content_block_delta\",\"id\":\"not counted\",\"delta\":{\"type\":\"text_delta\",\"text\":\"Hello, w\\u00f6rld\"}}\n\n"
	if got := read(events, start+text, 1, false); got.Final || !got.Reported || got.In != 25 || got.Text < 13 || got.Text > 20 {
		t.Errorf("Anthropic: %+v", got)
	}
	chat := "data: {\"model\":\"gpt-5\",\"choices\":[{\"delta\":{\"content\":\"Hello\"}}]}\n\n"
	if got := read(events, chat, 1, false); got.Final || got.Reported || got.Text != 5 {
		t.Errorf("OpenAI: %+v", got)
	}
	usageChunk := "data: {\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\n"
	if got := read(events, chat+usageChunk, 1, false); got.Final {
		t.Errorf("before [DONE]: %+v", got)
	}
	if got := read(events, chat+usageChunk+"data: [DONE]\n\n", 1, false); !got.Final {
		t.Errorf("after [DONE]: %+v", got)
	}
	if got := read(events, chat+"data: {\"choices\":[{\"delta\":{\"content\":\"Hel", 1, false); got.Text < 8 {
		t.Errorf("within an event: %+v", got)
	}
	// Tools are called with objects: keys and numbers are a model's there.
	gemini := `{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":{"id":"abc","n":12345}}}]}}]}`
	if got := read(events, "data: "+gemini+"\n\n", 1, false); got.Text < 13 {
		t.Errorf("arguments: %+v", got)
	}
}

func TestAsk(t *testing.T) {
	for body, want := range map[string]string{
		`{"messages":[{"role":"user","content":"{\"model\":\"x\"}","model":"y"}],"model":"gpt-5"}`: "gpt-5",
		`{"model":"a","mod\u0065l":"b","MODEL":"c"}`:                                               "a b c",
		`{"model":"a","model":"a"} `:                                                               "a",
		`{"model":5}`:                                                                              "",
		`{"model":null}`:                                                                           "",
		`{"model":"a"`:                                                                             "",
		`{"model":"a"}{}`:                                                                          "",
		`[{"model":"a"}]`:                                                                          "",
		`{"model":"a",}`:                                                                           "",
		`{"x":1}`:                                                                                  "",
		`{"model":"a b"}`:                                                                          "",
		"\xef\xbb\xbf{\"model\":\"a\"}":                                                            "",
		"{\x00\"\x00m\x00":                                                                         "",
		`{"model":"` + strings.Repeat("x", 500) + `"}`:                                             "",
		`{"model":"a","model":"b","model":"c","model":"d","model":"e"}`:                  "",
		`{"model":"a","a` + strings.Repeat("x", 200) + `":[1,2.5e3,true,{"a":[[],{}]}]}`: "a",
	} {
		for _, piece := range []int{1, 1000} {
			a := meter.NewAsk()
			for rest := body; rest != ""; {
				n := min(piece, len(rest))
				a.Write([]byte(rest[:n]))
				rest = rest[n:]
			}
			models, err := a.Models()
			if got := strings.Join(models, " "); got != want || (err == nil) != (want != "") {
				t.Errorf("%.60s: got %q, %v", body, got, err)
			}
		}
	}
}

func TestInPath(t *testing.T) {
	for path, want := range map[string]string{
		"/v1beta/models/gemini-2.5-flash:streamGenerateContent":                              "gemini-2.5-flash",
		"/v1/projects/p/locations/l/publishers/google/models/gemini-2.5-pro:generateContent": "gemini-2.5-pro",
		"/openai/deployments/our-gpt/chat/completions":                                       "our-gpt",
		"/model/anthropic.claude-sonnet-4-5-v1:0/invoke":                                     "anthropic.claude-sonnet-4-5-v1:0",
		"/v1/chat/completions": "", "/v1/models": "", "/v1/models/gpt-5": "", "/": "", "/x/models/a:b/c": "", "/a/model/b/c": "",
	} {
		if got := meter.InPath(path); got != want {
			t.Errorf("%s: got %q", path, got)
		}
	}
}

// No more memory is used for a large answer than for a small one.
func TestMemory(t *testing.T) {
	piece := []byte(`"` + strings.Repeat("x", 32<<10) + `",`)
	for _, kind := range []string{plain, events} {
		r := meter.NewReader(kind)
		r.Write([]byte("data: ["))
		if n := testing.AllocsPerRun(100, func() { r.Write(piece) }); n > 0 {
			t.Errorf("%s: %v allocations a write", kind, n)
		}
	}
}

func BenchmarkReader(b *testing.B) {
	event := []byte(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1741569952,"model":"gpt-5","choices":[{"index":0,"delta":{"content":" Hello"},"finish_reason":null}],"usage":null}` + "\n\n")
	r := meter.NewReader(events)
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	for b.Loop() {
		r.Write(event)
	}
}
