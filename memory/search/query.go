package search

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Query asks for entries. Any text is valid. Without a word in it the newest are found.
type Query struct {
	Text  string
	Limit int // 0 is 10, and 1,000 the most
	// Types, if any, are those an entry may have.
	Types []string
	// Paths is a pattern that paths match, as of path.Match, or a folder. "" is all.
	Paths string
	// Since and Until, if not zero, are the earliest time and the one before which an
	// entry must be.
	Since, Until time.Time
	// Distinct asks for no more than one hit of each file and session.
	Distinct bool
	// Vector is the meaning of Text by the Embedder, if the caller has it.
	Vector []float32
	// Allow, if not nil, says which files may be shown.
	Allow func(path string) bool
}

// Hit is a paragraph, file or turn that was found.
type Hit struct {
	ID      string    `json:"id"`   // of the entry: its front matter's, or its path
	Path    string    `json:"path"` // relative to the memory, as the sandbox chose it
	Line    int       `json:"line"` // of the file, from 1
	Session string    `json:"session,omitempty"`
	Type    string    `json:"type"`
	Heading string    `json:"heading,omitempty"`
	Text    string    `json:"text"`
	Time    time.Time `json:"time"`
	Score   float64   `json:"score"`  // 0 to 1, higher is better
	Source  string    `json:"source"` // paragraph, file or turn
}

const (
	// candidates is how many of each list are fused.
	candidates = 200
	// damping is the constant of reciprocal rank fusion (Cormack, Clarke and Büttcher,
	// Reciprocal Rank Fusion outperforms Condorcet, 2009).
	damping = 60
)

// Search finds what a query asks for, the best first.
func (x *Index) Search(ctx context.Context, q Query) ([]Hit, error) {
	hits, err := x.search(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("searching: %w", err)
	}
	return hits, nil
}

func (x *Index) search(ctx context.Context, q Query) ([]Hit, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if q.Limit <= 0 {
		q.Limit = 10
	}
	q.Limit = min(q.Limit, 1000)
	match := expression(q.Text)
	if match == "" {
		return x.list(ctx, q, q.Limit, "SELECT id, document FROM unit ORDER BY time DESC, id DESC")
	}
	units, err := x.list(ctx, q, max(candidates, q.Limit), "SELECT rowid AS id FROM unit_words WHERE unit_words MATCH ? ORDER BY bm25(unit_words, 2, 1)", match)
	if err != nil {
		return nil, err
	}
	for i := range units {
		units[i].Score = float64(damping+1) / float64(damping+1+i)
	}
	slices.SortStableFunc(units, func(a, b Hit) int { return cmp.Compare(b.Score, a.Score) })
	if q.Distinct {
		seen := map[[2]string]bool{}
		units = slices.DeleteFunc(units, func(h Hit) bool {
			key := [2]string{h.Path, ""}
			if h.Path == conversations {
				key[1] = h.Session
			}
			defer func() { seen[key] = true }()
			return seen[key]
		})
	}
	return units[:min(len(units), q.Limit)], nil
}

// list yields the first of an ordered statement that the query admits.
func (x *Index) list(ctx context.Context, q Query, most int, ordered string, args ...any) ([]Hit, error) {
	rows, err := x.db.QueryContext(ctx, `SELECT d.entry, f.path, u.line, d.session, u.type, u.heading, u.text, u.time
		FROM (`+ordered+`) o CROSS JOIN unit u ON u.id = o.id CROSS JOIN document d ON d.id = u.document CROSS JOIN file f ON f.id = d.file`, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var hits []Hit
	for len(hits) < most && rows.Next() {
		var h Hit
		var at int64
		if err := rows.Scan(&h.ID, &h.Path, &h.Line, &h.Session, &h.Type, &h.Heading, &h.Text, &at); err != nil {
			return nil, err
		}
		h.Time, h.Source = time.UnixMilli(at).UTC(), "paragraph"
		if h.Path == conversations {
			h.Source = "turn"
		}
		if q.admits(h) {
			hits = append(hits, h)
		}
	}
	return hits, rows.Err()
}

func (q Query) admits(h Hit) bool {
	if len(q.Types) > 0 && !slices.Contains(q.Types, h.Type) {
		return false
	}
	if !q.Since.IsZero() && h.Time.Before(q.Since) || !q.Until.IsZero() && !h.Time.Before(q.Until) {
		return false
	}
	if q.Paths != "" && !strings.HasPrefix(h.Path, strings.TrimSuffix(q.Paths, "/")+"/") {
		if ok, _ := path.Match(q.Paths, h.Path); !ok {
			return false
		}
	}
	return q.Allow == nil || q.Allow(h.Path)
}

// maxWords is how many different words of a query are looked for.
const maxWords = 48

// words are the different words of a text, the first maxWords of them.
func words(text string) []string {
	var list []string
	for w := range strings.FieldsFuncSeq(strings.ToLower(text), func(r rune) bool {
		return !unicode.In(r, unicode.L, unicode.N, unicode.M)
	}) {
		if w = clip(w, 64); len(list) < maxWords && !slices.Contains(list, w) {
			list = append(list, w)
		}
	}
	return list
}

// expression asks FTS5 for any of the words of a text. It is "" if there is none.
func expression(text string) string {
	var b strings.Builder
	for i, w := range words(text) {
		if i > 0 {
			b.WriteString(" OR ")
		}
		b.WriteString(`"` + w + `"`)
	}
	return b.String()
}
