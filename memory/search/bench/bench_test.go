package bench_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/memory/search/bench"
)

const locomo = `[{"sample_id":"c","conversation":{"speaker_a":"Ann","speaker_b":"Bo",
	"session_1_date_time":"1:56 pm on 8 May, 2023","session_1":[
		{"speaker":"Ann","dia_id":"D1:1","text":"I bought a sailing boat"},{"speaker":"Bo","dia_id":"D1:2","text":"Look","blip_caption":"a heron on a jetty"}],
	"session_2_date_time":"2:00 pm on 9 May, 2023","session_2":[{"speaker":"Bo","dia_id":"D2:1","text":"My brother bakes bread"}]},
	"qa":[{"question":"What boat does Ann have?","answer":"a sailing boat","evidence":["D1:1"],"category":1},
		{"question":"Where was the heron?","answer":"on a jetty","evidence":["D:1:2; D9:9"],"category":1},
		{"question":"Whose brother bakes?","answer":5,"evidence":["D"],"category":1}]}]`

const longMemEval = `[{"question_id":"q1","question_type":"single-session-user","question":"What instrument do I play?","answer":"the cello",
	"question_date":"2023/05/30 (Tue) 23:40","haystack_dates":["2023/05/20 (Sat) 02:21","2023/05/21 (Sun) 02:21"],"haystack_session_ids":["a","b"],
	"haystack_sessions":[[{"role":"user","content":"My instrument is the cello","has_answer":true},{"role":"assistant","content":"Nice"}],[{"role":"user","content":"Tell me of trains"}]],
	"answer_session_ids":["a"]},
	{"question_id":"q2_abs","question":"What is my cat's name?","haystack_dates":["2023/05/20 (Sat) 02:21"],"haystack_session_ids":["a"],
	"haystack_sessions":[[{"role":"user","content":"I have a dog"}]],"answer_session_ids":["a"]}]`

func TestFormats(t *testing.T) {
	for _, tt := range []struct {
		data, format                          string
		histories, sessions, turns, questions int
	}{
		{locomo, "LoCoMo", 1, 2, 3, 2},
		{longMemEval, "LongMemEval", 2, 3, 4, 1},
	} {
		r, err := bench.Run(t.Context(), strings.NewReader(tt.data), bench.Options{})
		if err != nil {
			t.Errorf("%s: %v", tt.format, err)
			continue
		}
		if r.Format != tt.format || r.Histories != tt.histories || r.Sessions != tt.sessions || r.Turns != tt.turns || r.Questions != tt.questions || r.Skipped != 1 {
			t.Errorf("%s: %+v", tt.format, r)
		}
		for _, x := range r.Results {
			if x.Method == "index" && (x.Hit1 != 1 || x.MRR != 1) {
				t.Errorf("%s: %+v", tt.format, x)
			}
		}
	}
}

// A run that is broken off ends with the reason, in the middle of a history too, and leaves
// nothing behind.
func TestBrokenOff(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	var one []map[string]any
	if err := json.Unmarshal([]byte(locomo), &one); err != nil {
		t.Fatal(err)
	}
	one[0]["qa"] = slices.Repeat(one[0]["qa"].([]any), 3_000)
	long, err := json.Marshal(append(one, one[0]))
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{"between histories": string(longMemEval), "in a history": string(long)} {
		ctx, cancel := context.WithCancel(t.Context())
		o := bench.Options{Progress: func(int, int) { cancel() }}
		if name == "in a history" {
			ctx, cancel = context.WithTimeout(t.Context(), 500*time.Millisecond)
			o.Progress = func(int, int) { t.Errorf("%s: it goes on to the end", name) }
		}
		_, err := bench.Run(ctx, strings.NewReader(data), o)
		if !errors.Is(err, ctx.Err()) || err == nil {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("%d files are left, %v", len(left), err)
	}
}

func TestBadData(t *testing.T) {
	for data, want := range map[string]string{
		"":                                   "not a JSON array",
		"{}":                                 "not a JSON array",
		"[]":                                 "no question",
		`[{"x":1}]`:                          "history 1: it is neither",
		locomo[:len(locomo)/2]:               "history 1: ",
		locomo[:len(locomo)-1]:               "cut off",
		`[{"haystack_sessions":[[]]}]`:       "0 haystack_session_ids for 1",
		`[{"conversation":{"session_1":5}}]`: "session_1",
		strings.TrimSuffix(locomo, "]") + "," + longMemEval[1:]: "history 2 is of LongMemEval",
	} {
		if _, err := bench.Run(t.Context(), strings.NewReader(data), bench.Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %s", data, err, want)
		}
	}
}
