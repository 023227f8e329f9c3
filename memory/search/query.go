package search

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"sallyport/memory"
)

// Query asks for entries. Any text is valid. Without a word in it the newest are found.
type Query struct {
	Text  string
	Limit int // 0 is 10, and 1,000 the most
	// Types, if any, are those an entry may have.
	Types []string
	// Since and Until, if not zero, are the earliest time and the one before which an
	// entry must be.
	Since, Until time.Time
	// Distinct asks for no more than one hit of each file and session.
	Distinct bool
	// Vector is the Embedder's of Text, if the caller has it.
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
	Score   float64   `json:"score"`  // 0 to 1, higher is better; 1 is the first of each list
	Source  string    `json:"source"` // paragraph, file or turn
	// Note says why the text of the file is not searched, if there was no room for it.
	Note string `json:"note,omitempty"`
}

const (
	// candidates is how many of each list are fused.
	candidates = 200
	// maxLooked is how many of a list are looked at when the query admits few.
	maxLooked = 20_000
	// maxMatches is how many matches are scored: rare words have precedence, and the
	// newest matches of a word that has more.
	maxMatches = 2000
	// maxWords is how many different words of a query are looked for.
	maxWords = 32
)

// The weights of what is fused, and the constant of reciprocal rank fusion (Cormack,
// Clarke and Büttcher, Reciprocal Rank Fusion outperforms Condorcet, 2009).
const (
	unitWeight     = 1
	documentWeight = 0.6
	vectorWeight   = 1
	recencyWeight  = 0.005
	typeWeight     = 0.005
	damping        = 60
)

const (
	byUnit = `SELECT id, rank FROM (SELECT rowid AS id, bm25(unit_words, 1, 1, 0.3) AS rank FROM unit_words
		WHERE unit_words MATCH ? ORDER BY rowid DESC LIMIT ?) ORDER BY rank LIMIT ?`
	byDocument = `SELECT (SELECT min(id) FROM unit WHERE document=m.id) AS id, rank FROM (SELECT rowid AS id, bm25(document_words) AS rank FROM document_words
		WHERE document_words MATCH ? ORDER BY rowid DESC LIMIT ?) m ORDER BY rank LIMIT ?`
	byTime = "SELECT id, -time AS rank FROM unit ORDER BY time DESC LIMIT ?"
	byList = "SELECT value AS id, key AS rank FROM json_each(?) ORDER BY key LIMIT ?"
)

// Search finds what a query asks for, the best first. A word that more than 2,000 entries
// have finds the newest of them. If the Embedder fails, its error wraps [ErrEmbedding]
// and the hits are those of the words alone.
func (x *Index) Search(ctx context.Context, q Query) ([]Hit, error) {
	var failed error
	if e := x.options.Embedder; e != nil && q.Vector == nil && strings.TrimSpace(q.Text) != "" {
		if vectors, err := embed(ctx, e, []string{q.Text}); err != nil {
			failed = err
		} else {
			q.Vector = vectors[0]
		}
	}
	hits, err := x.search(ctx, q)
	if damaged(err) {
		x.broken.Store(true)
		return nil, fmt.Errorf("searching: %w: the next update makes the index anew", err)
	}
	if err != nil {
		return nil, fmt.Errorf("searching: %w", err)
	}
	return hits, failed
}

func (x *Index) search(ctx context.Context, q Query) ([]Hit, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if q.Limit <= 0 {
		q.Limit = 10
	}
	q.Limit = min(q.Limit, 1000)
	most := max(candidates, q.Limit)
	var units, documents, meant []candidate
	list := words(q.Text)
	if len(list) == 0 && q.Vector == nil {
		newest, err := x.list(ctx, q, most, byTime)
		if q.Distinct {
			newest = distinct(newest)
		}
		return hits(newest, q.Limit), err
	}
	var errs [3]error
	units, errs[0] = x.matches(ctx, q, most, "unit_words", byUnit, list)
	documents, errs[1] = x.matches(ctx, q, most, "document_words", byDocument, list)
	if q.Vector != nil {
		meant, errs[2] = x.meant(ctx, q, most)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	found := fuse(units, documents, meant)
	if q.Distinct {
		found = distinct(found)
	}
	return hits(found, q.Limit), nil
}

// candidate is a hit with its unit and document.
type candidate struct {
	Hit
	unit, document int64
	alone          bool // the document has no other unit
}

func hits(list []candidate, most int) []Hit {
	found := make([]Hit, 0, min(len(list), most))
	for _, c := range list[:min(len(list), most)] {
		found = append(found, c.Hit)
	}
	return found
}

// fuse orders units by their own rank, their document's and that of what they mean, and
// somewhat by how new they are and whether an agent chose to keep them. Of a document
// without a unit among them it takes the first.
func fuse(units, documents, meant []candidate) []candidate {
	total := unitWeight + documentWeight + recencyWeight + typeWeight
	if meant != nil {
		total += vectorWeight
	}
	share := func(weight float64, rank int) float64 {
		if rank == 0 {
			return 0
		}
		return weight * (damping + 1) / (damping + float64(rank)) / total
	}
	documentRank := map[int64]int{}
	for i, d := range documents {
		documentRank[d.document] = i + 1
	}
	has := map[int64]bool{}
	at := map[int64]int{}
	for i := range units {
		u := &units[i]
		at[u.unit], has[u.document] = i, true
		rank := documentRank[u.document]
		if u.alone {
			rank = i + 1
		}
		u.Score = share(unitWeight, i+1) + share(documentWeight, rank)
	}
	for i, m := range meant {
		j, ok := at[m.unit]
		if !ok {
			m.Score = share(documentWeight, documentRank[m.document])
			j, has[m.document] = len(units), true
			units = append(units, m)
		}
		units[j].Score += share(vectorWeight, i+1)
	}
	for i, d := range documents {
		if !has[d.document] {
			if d.Source == "paragraph" {
				d.Source = "file"
			}
			d.Score = share(documentWeight, i+1)
			units = append(units, d)
		}
	}
	newest := make([]int, len(units))
	for i := range newest {
		newest[i] = i
	}
	slices.SortStableFunc(newest, func(a, b int) int { return units[b].Time.Compare(units[a].Time) })
	for rank, i := range newest {
		units[i].Score += share(recencyWeight, rank+1)
		if units[i].Type != turnType {
			units[i].Score += share(typeWeight, 1)
		}
		units[i].Score = min(units[i].Score, 1)
	}
	slices.SortStableFunc(units, func(a, b candidate) int { return cmp.Compare(b.Score, a.Score) })
	return units
}

// distinct is the best of each file and session.
func distinct(list []candidate) []candidate {
	type whole struct{ path, session string }
	seen := map[whole]bool{}
	return slices.DeleteFunc(list, func(c candidate) bool {
		w := whole{path: c.Path}
		if c.Path == conversations {
			w.session = c.Session
		}
		again := seen[w]
		seen[w] = true
		return again
	})
}

// matches lists what has any of the words, the rare ones first of all.
func (x *Index) matches(ctx context.Context, q Query, most int, table, ordered string, list []string) ([]candidate, error) {
	type counted struct {
		word  string
		count int
	}
	var known []counted
	for _, w := range list {
		c := counted{word: `"` + w + `"`}
		count := "SELECT count(*) FROM (SELECT 1 FROM " + table + " WHERE " + table + " MATCH ? LIMIT ?)"
		if err := x.db.QueryRowContext(ctx, count, c.word, maxMatches+1).Scan(&c.count); err != nil {
			return nil, err
		}
		if c.count > 0 {
			known = append(known, c)
		}
	}
	if len(known) == 0 {
		return nil, nil
	}
	slices.SortStableFunc(known, func(a, b counted) int { return cmp.Compare(a.count, b.count) })
	match, sum := "", 0
	for _, c := range known {
		if sum += c.count; match == "" {
			match = c.word
		} else if sum <= maxMatches {
			match += " OR " + c.word
		}
	}
	return x.list(ctx, q, most, ordered, match, maxMatches)
}

// list yields the first units of an ordered statement that the query admits.
func (x *Index) list(ctx context.Context, q Query, most int, ordered string, args ...any) ([]candidate, error) {
	for looked := most; ; looked *= 10 {
		list, all, err := x.page(ctx, q, most, looked, ordered, args)
		if err != nil || all || len(list) == most || looked > maxLooked {
			return list, err
		}
	}
}

func (x *Index) page(ctx context.Context, q Query, most, looked int, ordered string, args []any) (list []candidate, all bool, err error) {
	n := 0
	err = each(ctx, x.db, func(scan func(...any) error) error {
		var c candidate
		var at, bytes int64
		var units int
		if err := scan(&c.unit, &c.document, &units, &c.ID, &c.Path, &bytes, &c.Line, &c.Session, &c.Type, &c.Heading, &c.Text, &at); err != nil {
			return err
		}
		n++
		c.Time, c.Source, c.alone = time.UnixMilli(at).UTC(), "paragraph", units == 1
		if c.Type == turnType && c.Path == conversations {
			c.Source = "turn"
		}
		if c.Text == "" {
			c.Source = "file"
		}
		if bytes == left {
			c.Note = "only its name is searched: the memory has too much text"
		}
		if q.admits(c.Hit) {
			list = append(list, c)
		}
		if len(list) == most {
			return errEnough
		}
		return nil
	}, `SELECT u.id, d.id, d.units, d.entry, f.path, f.bytes, u.line, d.session, u.type, u.heading, u.text, u.time
		FROM (`+ordered+`) o CROSS JOIN unit u ON u.id = o.id CROSS JOIN document d ON d.id = u.document CROSS JOIN file f ON f.id = d.file
		ORDER BY o.rank`, append(slices.Clip(args), looked)...)
	if errors.Is(err, errEnough) {
		err = nil
	}
	return list, n < looked, err
}

var errEnough = errors.New("no more is asked for")

// meant lists units by their vectors.
func (x *Index) meant(ctx context.Context, q Query, most int) ([]candidate, error) {
	ids, err := x.nearest(ctx, q.Vector, maxLooked)
	if err != nil {
		return nil, err
	}
	list, err := json.Marshal(ids)
	if err != nil {
		return nil, err
	}
	return x.list(ctx, q, most, byList, string(list))
}

func (q Query) admits(h Hit) bool {
	if len(q.Types) > 0 && !slices.Contains(q.Types, h.Type) {
		return false
	}
	if !q.Since.IsZero() && h.Time.Before(q.Since) || !q.Until.IsZero() && !h.Time.Before(q.Until) {
		return false
	}
	return q.Allow == nil || q.Allow(h.Path)
}

// words are the different words of a text, the first maxWords of them, without those that
// say little if there are others.
func words(text string) []string {
	var list []string
	for w := range strings.FieldsFuncSeq(spaced(strings.ToLower(memory.Clip(text, 64<<10))), func(r rune) bool {
		return r == unicode.ReplacementChar || !unicode.In(r, unicode.L, unicode.N, unicode.M)
	}) {
		if w = memory.Clip(w, 64); !slices.Contains(list, w) && !(len(list) >= maxWords && stop[w]) {
			list = append(list, w)
		}
		if len(list) == 2*maxWords {
			break
		}
	}
	if some := slices.DeleteFunc(slices.Clone(list), func(w string) bool { return stop[w] }); len(some) > 0 {
		list = some
	}
	return list[:min(len(list), maxWords)]
}

// stop are English words that say little.
var stop = func() map[string]bool {
	m := map[string]bool{}
	for w := range strings.FieldsSeq(`a about after all also am an and any are as at be because been before being both but by
		can could d did do does doing don for from had has have having he her hers him his how i if in into is it its
		ll m me mine my no nor not of off on or our ours over re s she should so some such t than that the their theirs
		them then there these they this those to too up us ve very was we were what when where which while who whom whose
		why will with would you your yours`) {
		m[w] = true
	}
	return m
}()
