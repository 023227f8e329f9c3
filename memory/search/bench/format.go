package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// history is what was said, and what is asked of it.
type history struct {
	sessions  []session
	turns     []turn
	lower     []string // the turns' texts, in small letters
	questions []question
}

type session struct {
	name string
	time time.Time
}

type turn struct {
	session    int
	role, text string
}

type question struct {
	text            string
	sessions, turns []int // that answer it
}

// record is a history in either format.
type record struct {
	// LoCoMo
	Conversation map[string]json.RawMessage `json:"conversation"`
	QA           []struct {
		Question string   `json:"question"`
		Evidence []string `json:"evidence"`
	} `json:"qa"`
	// LongMemEval
	ID               string   `json:"question_id"`
	Question         string   `json:"question"`
	Haystack         [][]said `json:"haystack_sessions"`
	HaystackIDs      []string `json:"haystack_session_ids"`
	HaystackDates    []string `json:"haystack_dates"`
	AnswerSessionIDs []string `json:"answer_session_ids"`
}

// said is a turn in either format.
type said struct {
	// LoCoMo
	Speaker string `json:"speaker"`
	DiaID   string `json:"dia_id"`
	Text    string `json:"text"`
	Caption string `json:"blip_caption"`
	// LongMemEval
	Role      string `json:"role"`
	Content   string `json:"content"`
	HasAnswer bool   `json:"has_answer"`
}

func (r record) history() (h history, format string, err error) {
	switch {
	case r.Conversation != nil:
		h, err = r.locomo()
		format = "LoCoMo"
	case r.Haystack != nil:
		h, err = r.longMemEval()
		format = "LongMemEval"
	default:
		err = errors.New("it is neither LoCoMo's (no conversation) nor LongMemEval's (no haystack_sessions)")
	}
	for _, t := range h.turns {
		h.lower = append(h.lower, strings.ToLower(t.text))
	}
	return h, format, err
}

// evidence names a turn of LoCoMo: D, the session's number, and the turn's.
var evidence = regexp.MustCompile(`D:?\d+:\d+`)

func (r record) locomo() (history, error) {
	var h history
	at := map[string]int{}
	for n := 1; ; n++ {
		key := "session_" + strconv.Itoa(n)
		raw, ok := r.Conversation[key]
		if !ok && r.Conversation[key+"_date_time"] == nil {
			break
		}
		var list []said
		if ok {
			if err := json.Unmarshal(raw, &list); err != nil {
				return h, fmt.Errorf("%s: %w", key, err)
			}
		}
		var date string
		if raw := r.Conversation[key+"_date_time"]; raw != nil {
			if err := json.Unmarshal(raw, &date); err != nil {
				return h, fmt.Errorf("%s_date_time: %w", key, err)
			}
		}
		h.sessions = append(h.sessions, session{key, parse("3:04 pm on 2 January, 2006", date, n)})
		for _, s := range list {
			text := s.Text
			if s.Caption != "" {
				text += " [shares a picture: " + s.Caption + "]"
			}
			at[s.DiaID] = len(h.turns)
			h.turns = append(h.turns, turn{len(h.sessions) - 1, s.Speaker, text})
		}
	}
	for _, q := range r.QA {
		asked := question{text: q.Question}
		for _, e := range q.Evidence {
			for _, id := range evidence.FindAllString(e, -1) {
				if i, ok := at[strings.Replace(id, "D:", "D", 1)]; ok {
					asked.turns = append(asked.turns, i)
				}
			}
		}
		h.questions = append(h.questions, asked)
	}
	return h, nil
}

func (r record) longMemEval() (history, error) {
	var h history
	if len(r.HaystackIDs) != len(r.Haystack) {
		return h, fmt.Errorf("%d haystack_session_ids for %d haystack_sessions", len(r.HaystackIDs), len(r.Haystack))
	}
	asked := question{text: r.Question}
	answers := map[string]bool{}
	for _, id := range r.AnswerSessionIDs {
		answers[id] = true
	}
	for n, list := range r.Haystack {
		date := ""
		if n < len(r.HaystackDates) {
			date = r.HaystackDates[n]
		}
		h.sessions = append(h.sessions, session{r.HaystackIDs[n], parse("2006/01/02 (Mon) 15:04", date, n)})
		if answers[r.HaystackIDs[n]] {
			asked.sessions = append(asked.sessions, n)
		}
		for _, s := range list {
			if s.HasAnswer {
				asked.turns = append(asked.turns, len(h.turns))
			}
			h.turns = append(h.turns, turn{n, s.Role, s.Content})
		}
	}
	if strings.HasSuffix(r.ID, "_abs") { // it asks for what the history has not
		asked.turns, asked.sessions = nil, nil
	}
	h.questions = []question{asked}
	return h, nil
}

// parse reads a session's time. One that does not parse is the n-th day of 2000.
func parse(layout, date string, n int) time.Time {
	t, err := time.Parse(layout, date)
	if err != nil {
		return time.Date(2000, 1, 1+n, 0, 0, 0, 0, time.UTC)
	}
	return t
}
