// Package bench measures how well a memory's search finds what answers questions, on data
// sets in the formats of LoCoMo (Maharana et al., 2024) and LongMemEval (Wu et al., 2025),
// beside simpler ways to search. It downloads nothing.
package bench

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sallyport/memory"
	"sallyport/memory/search"
)

// Result is how well a way to search did: the share of questions for which one of the
// first 1, 5 and 10 that were found answers, and the mean of 1/rank of the first that
// does (0 beyond rank 10).
type Result struct {
	Method string  `json:"method"` // index, grep, recency or random
	Level  string  `json:"level"`  // session or turn
	Hit1   float64 `json:"hit_at_1"`
	Hit5   float64 `json:"hit_at_5"`
	Hit10  float64 `json:"hit_at_10"`
	MRR    float64 `json:"mrr"`
}

// Report says what a data set came to.
type Report struct {
	Format    string `json:"format"`
	Histories int    `json:"histories"`
	Sessions  int    `json:"sessions"`
	Turns     int    `json:"turns"`
	Questions int    `json:"questions"`
	// Skipped are questions that name no evidence which the history has.
	Skipped int           `json:"skipped"`
	Results []Result      `json:"results"`
	Median  time.Duration `json:"median_nanoseconds"` // of a search of the index
}

// Options of a run.
type Options struct {
	Embedder search.Embedder // nil for none
	// Progress, if not nil, is called after each history. How many there are is not known.
	Progress func(histories, questions int)
}

// most is how many are looked at of what was found.
const most = 10

// Run scores a data set, a JSON array of histories with questions. It keeps one history at
// a time.
func Run(ctx context.Context, data io.Reader, o Options) (Report, error) {
	d := json.NewDecoder(bufio.NewReaderSize(data, 1<<20))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return Report{}, errors.Join(errors.New("the data set is not a JSON array of histories"), err)
	}
	r := Report{}
	sums := map[[2]string]*Result{}
	var took []time.Duration
	for d.More() {
		var item record
		if err := d.Decode(&item); err != nil {
			return r, fmt.Errorf("history %d: %w", r.Histories+1, err)
		}
		h, format, err := item.history()
		if err != nil {
			return r, fmt.Errorf("history %d: %w", r.Histories+1, err)
		}
		if r.Format != "" && r.Format != format {
			return r, fmt.Errorf("history %d is of %s, those before it of %s", r.Histories+1, format, r.Format)
		}
		r.Format = format
		if err := h.score(ctx, o, &r, sums, &took); err != nil {
			return r, fmt.Errorf("history %d: %w", r.Histories+1, err)
		}
		r.Histories++
		if o.Progress != nil {
			o.Progress(r.Histories, r.Questions)
		}
	}
	if _, err := d.Token(); err != nil {
		return r, fmt.Errorf("the data set is cut off: %w", err)
	}
	if r.Questions == 0 {
		return r, errors.New("the data set has no question with evidence")
	}
	for _, level := range []string{"session", "turn"} {
		for _, method := range []string{"index", "grep", "recency", "random"} {
			s := sums[[2]string{method, level}]
			n := float64(r.Questions)
			r.Results = append(r.Results, Result{method, level, s.Hit1 / n, s.Hit5 / n, s.Hit10 / n, s.MRR / n})
		}
	}
	slices.Sort(took)
	r.Median = took[len(took)/2]
	return r, nil
}

// score asks all of a history's questions.
func (h history) score(ctx context.Context, o Options, r *Report, sums map[[2]string]*Result, took *[]time.Duration) (err error) {
	dir, err := os.MkdirTemp("", "memory-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	index, err := h.index(ctx, dir, o)
	if err != nil {
		return err
	}
	defer index.Close()
	r.Sessions += len(h.sessions)
	r.Turns += len(h.turns)
	random := rand.New(rand.NewPCG(uint64(r.Histories), 0))
	for _, q := range h.questions {
		turns := slices.DeleteFunc(slices.Clone(q.turns), func(i int) bool { return i >= len(h.turns) })
		sessions := q.sessions
		for _, t := range turns {
			sessions = append(sessions, h.turns[t].session)
		}
		if len(sessions) == 0 || len(turns) == 0 {
			r.Skipped++
			continue
		}
		r.Questions++
		began := time.Now()
		bySession, err := index.Search(ctx, search.Query{Text: q.text, Limit: most, Distinct: true})
		if err != nil {
			return err
		}
		*took = append(*took, time.Since(began))
		byTurn, err := index.Search(ctx, search.Query{Text: q.text, Limit: most})
		if err != nil {
			return err
		}
		count := func(method, level string, found, want []int) {
			s := sums[[2]string{method, level}]
			if s == nil {
				s = &Result{}
				sums[[2]string{method, level}] = s
			}
			rank := slices.IndexFunc(found[:min(len(found), most)], func(i int) bool { return slices.Contains(want, i) }) + 1
			if rank == 0 {
				return
			}
			s.MRR += 1 / float64(rank)
			for _, at := range []struct {
				rank int
				sum  *float64
			}{{1, &s.Hit1}, {5, &s.Hit5}, {10, &s.Hit10}} {
				if rank <= at.rank {
					*at.sum++
				}
			}
		}
		var of, lines []int
		for _, hit := range bySession {
			of = append(of, h.turns[hit.Line-1].session)
		}
		for _, hit := range byTurn {
			lines = append(lines, hit.Line-1)
		}
		count("index", "session", of, sessions)
		count("index", "turn", lines, turns)
		ofAll, all := h.grep(q.text)
		count("grep", "session", ofAll, sessions)
		count("grep", "turn", all, turns)
		ofAll, all = newest(len(h.sessions)), newest(len(h.turns))
		count("recency", "session", ofAll, sessions)
		count("recency", "turn", all, turns)
		count("random", "session", random.Perm(len(h.sessions)), sessions)
		count("random", "turn", random.Perm(len(h.turns)), turns)
	}
	return nil
}

// index makes a memory of a history, as an agent that appends its turns has it.
func (h history) index(ctx context.Context, dir string, o Options) (*search.Index, error) {
	home, err := memory.Ensure(dir)
	if err != nil {
		return nil, err
	}
	f, err := memory.Open(home)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var b strings.Builder
	e := json.NewEncoder(&b)
	for i, t := range h.turns {
		s := h.sessions[t.session]
		err := e.Encode(map[string]string{"time": s.time.Add(time.Duration(i) * time.Second).Format(time.RFC3339), "session": s.name, "role": t.role, "content": t.text})
		if err != nil {
			return nil, err
		}
	}
	if err := f.Write("conversations.jsonl", []byte(b.String()), ""); err != nil {
		return nil, err
	}
	x, err := search.Open(ctx, filepath.Join(dir, "index.db"), search.Options{Embedder: o.Embedder})
	if err != nil {
		return nil, err
	}
	if err := x.Update(ctx, f, nil); err != nil {
		return nil, errors.Join(err, x.Close())
	}
	return x, nil
}

// grep orders sessions and turns by how many of a question's words of four letters and
// more are in them, the newest first among equals.
func (h history) grep(question string) (sessions, turns []int) {
	var words []string
	for _, w := range strings.Fields(strings.ToLower(question)) {
		if w = strings.Trim(w, ".,;:!?'\"()"); len(w) >= 4 {
			words = append(words, w)
		}
	}
	inTurns, inSessions := make([]int, len(h.turns)), make([]int, len(h.sessions))
	for _, w := range words {
		last := -1
		for i, t := range h.turns {
			if !strings.Contains(h.lower[i], w) {
				continue
			}
			inTurns[i]++
			if t.session != last {
				inSessions[t.session]++
				last = t.session
			}
		}
	}
	order := func(counts []int) []int {
		list := newest(len(counts))
		slices.SortStableFunc(list, func(a, b int) int { return cmp.Compare(counts[b], counts[a]) })
		return list
	}
	return order(inSessions), order(inTurns)
}

// newest are the numbers below n, the last first.
func newest(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = n - 1 - i
	}
	return list
}
