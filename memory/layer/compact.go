package layer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"sallyport/memory"
)

// summaryFolder has the summaries of old entries.
const summaryFolder = entryFolder + "summaries/"

const (
	maxBatch     = 64        // entries that are summarized at once
	maxBatchText = 64 << 10  // bytes of their text, but for a single one
	maxSources   = 256       // entries of a summary, whose ids have room in its front matter
	maxSummary   = 512 << 10 // bytes of a summary that more is added to
)

// CompactOptions say what to compact, and how.
type CompactOptions struct {
	// Before is the time before which an entry must be.
	Before time.Time
	// DryRun returns the plan and changes nothing. Summarize is not called.
	DryRun bool
	// Summarize returns the text that stands for entries of one type: at most 64 of them,
	// with 64 KiB of text. nil picks sentences out of them.
	Summarize func(ctx context.Context, entries []Entry) (string, error)
	// Written is called after a summary is written and before the entries that are newly
	// in it are removed. An error ends Compact. nil does nothing.
	Written func(ctx context.Context, s Summary) error
	// Progress is told how many of the entries are done. nil tells nobody.
	Progress func(done, total int)
}

// Summary is a file that Compact writes, or adds to.
type Summary struct {
	Path string `json:"path"`
	Type string `json:"type"`
	// Sources are the paths of the entries that are newly in it.
	Sources []string `json:"sources"`
	// Marks are of the sources. Trusted and untrusted entries are never in one summary.
	memory.Marks
	// Before is the bytes of the sources' text, and After of what stands for it.
	Before int `json:"bytes_before"`
	After  int `json:"bytes_after,omitempty"`
}

// Plan is what Compact has done, or would do.
type Plan struct {
	Summaries []Summary `json:"summaries"`
	// Kept is how many entries stay as they are because they instruct.
	Kept int `json:"kept"`
}

// instruction is of texts that say how to do things from then on.
var instruction = regexp.MustCompile(`(?i)\b(always|never|must|do not|don['’]?t|cannot|can['’]t|mustn['’]?t|avoid|prefers?|make sure|be sure|from now on|without (asking|permission|approval)|ask (me|us|first|before)|only (if|when|after) (i|we|the user))\b`)

// old is an entry that may be compacted. Its text is read when it is needed.
type old struct {
	Entry
	digest memory.Digest
	size   int // bytes of the text
}

// Compact replaces the entries before a time by summaries, one for each type and month in
// memories/summaries, which name their sources. Every number, name and id of an entry
// stays, and at least a sentence of it. An entry is removed only after the summary that it
// is in is written, and not if it has been changed meanwhile: broken off, Compact leaves
// each entry, or a summary with it. Preferences, entries that instruct, and files that are
// not as Store wrote them, stay as they are. It returns what it has done also with an
// error.
func (l *Layers) Compact(ctx context.Context, o CompactOptions) (Plan, error) {
	c := compaction{Layers: l, CompactOptions: o, plan: Plan{Summaries: []Summary{}}}
	if o.Before.IsZero() {
		return c.plan, invalid("compacting needs the time before which entries are old")
	}
	groups, err := c.groups(ctx)
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		if err == nil {
			err = c.group(ctx, name, groups[name])
		}
	}
	if err != nil {
		err = fmt.Errorf("compacting: %w", err)
	}
	return c.plan, err
}

type compaction struct {
	*Layers
	CompactOptions
	plan        Plan
	done, total int
}

// groups returns the old entries by the name that their summary will have.
func (c *compaction) groups(ctx context.Context) (map[string][]old, error) {
	groups := map[string][]old{}
	for _, kind := range Types {
		if kind == Preference {
			continue
		}
		files, err := c.scan(entryFolder + kind)
		if err != nil && !errors.Is(err, memory.ErrTruncated) {
			return nil, err
		}
		for _, f := range files {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if f.Kind != memory.KindFile || f.Size > maxText+maxFront {
				continue
			}
			e, ok := c.old(f.Path)
			switch {
			case !ok || e.Type != kind || !e.Time.Before(c.Before):
			case instruction.MatchString(e.Text):
				c.plan.Kept++
			default:
				name := kind + e.Time.Format("-2006-01")
				if e.Untrusted != "" {
					name += "-untrusted"
				}
				e.Text = ""
				groups[name] = append(groups[name], e)
				c.total++
			}
		}
	}
	return groups, nil
}

// old reads an entry that is as Store has written it.
func (c *compaction) old(path string) (e old, ok bool) {
	data, err := c.contents(path)
	if err != nil || !utf8.Valid(data) {
		return e, false
	}
	e.Entry, _ = parse(path, data, time.Time{})
	e.Entry, e.digest, e.size = c.judged(e.Entry), memory.DigestOf(data), len(e.Text)
	return e, e.ID != path
}

// group compacts the entries of one type, month and trust.
func (c *compaction) group(ctx context.Context, name string, entries []old) error {
	parts, err := c.parts(name)
	if err != nil {
		return err
	}
	// A run that was broken off may have written of entries that it has not removed.
	entries = slices.DeleteFunc(entries, func(e old) bool {
		written := slices.ContainsFunc(parts, func(p part) bool { return p.sources[e.ID] == sourceDigest(e) })
		if written && err == nil {
			err = c.remove([]old{e})
			c.done++
		}
		return written
	})
	slices.SortFunc(entries, func(a, b old) int { return strings.Compare(a.ID, b.ID) })
	for len(entries) > 0 && err == nil {
		n, size := 1, entries[0].size
		for n < min(len(entries), maxBatch) && size+entries[n].size <= maxBatchText {
			size += entries[n].size
			n++
		}
		i := slices.IndexFunc(parts, func(p part) bool { return p.has(n) })
		if i < 0 {
			i = len(parts)
			parts = append(parts, newPart(name, i+1))
		}
		err = c.batch(ctx, &parts[i], entries[:n])
		entries = entries[n:]
		if c.done += n; c.Progress != nil {
			c.Progress(c.done, c.total)
		}
	}
	return err
}

// part is one of the files that a summary has: a long one is parted.
type part struct {
	id, path string
	size     int
	sources  map[string]string
	closed   bool // nothing may be added to it
}

func newPart(name string, number int) part {
	p := part{id: name, sources: map[string]string{}}
	if number > 1 {
		p.id = fmt.Sprintf("%s-%d", name, number)
	}
	p.path = summaryFolder + p.id + ".md"
	return p
}

func (p part) has(room int) bool {
	return !p.closed && len(p.sources)+room <= maxSources && p.size < maxSummary
}

// parts returns the files of a summary. A file that the sandbox has put in the place of
// one, and
// a trusted one that it has written to since it is not trusted, stays as it is.
func (c *compaction) parts(name string) (list []part, err error) {
	for {
		p := newPart(name, len(list)+1)
		data, err := c.Folder.Read(p.path)
		if errors.Is(err, fs.ErrNotExist) {
			return list, nil
		}
		e, f := parse(p.path, data, time.Time{})
		p.closed = err != nil || e.ID != p.id || c.untrusted(p.path) != "" && !strings.HasSuffix(name, "-untrusted")
		if p.size = len(data); !p.closed && f.Sources != nil {
			p.sources = f.Sources
		}
		if list = append(list, p); len(list) > maxNames {
			return nil, memory.ErrTruncated
		}
	}
}

// batch summarizes some entries, adds the text to a part, and removes the entries.
func (c *compaction) batch(ctx context.Context, p *part, entries []old) error {
	s := Summary{Path: p.path, Type: entries[0].Type}
	var batch []old
	var texts []Entry
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		again, ok := c.old(e.Path)
		if !ok || again.digest != e.digest {
			continue // it has been changed meanwhile
		}
		batch, texts = append(batch, again), append(texts, again.Entry)
		s.Sources, s.Before = append(s.Sources, e.Path), s.Before+again.size
		s.Untrusted = join(s.Untrusted, again.Untrusted)
	}
	if len(batch) == 0 {
		return nil
	}
	text, err := "", error(nil)
	switch {
	case c.Summarize == nil:
		text = extract(texts)
	case !c.DryRun:
		if text, err = c.Summarize(ctx, texts); err == nil {
			text = strings.TrimSpace(text)
			err = validText("the summary", text, maxBatchText)
		}
		if err != nil {
			return err
		}
		text = keepFacts(text, texts)
	}
	s.After = len(text)
	for _, e := range batch {
		p.sources[e.ID] = sourceDigest(e)
	}
	p.size += len(text)
	if !c.DryRun {
		err = c.change(ctx, p.path, func(old []byte) ([]byte, error) {
			e, f := parse(p.path, old, time.Time{})
			switch {
			case old == nil:
				e = Entry{ID: p.id, Type: s.Type, Text: fmt.Sprintf("# %s of %s\n", s.Type, batch[0].Time.Format("January 2006"))}
			case e.ID != p.id:
				return nil, memory.ErrChanged
			}
			if last := batch[len(batch)-1].Time; last.After(e.Time) {
				e.Time = last
			}
			e.Untrusted = join(f.Untrusted, s.Untrusted)
			e.Text = strings.TrimSpace(e.Text + "\n" + without(text, e.Text))
			return e.file(p.sources), nil
		})
		if err == nil && c.Written != nil {
			err = c.Written(ctx, s)
		}
		if err == nil {
			err = c.remove(batch)
		}
	}
	if err == nil {
		c.plan.Summaries = append(c.plan.Summaries, s)
	}
	return err
}

// remove removes entries that are as they were summarized.
func (c *compaction) remove(entries []old) error {
	if c.DryRun {
		return nil
	}
	for _, e := range entries {
		err := c.Folder.RemoveFile(e.Path, e.digest)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, memory.ErrChanged) {
			return err
		}
	}
	return nil
}

// sourceDigest tells an entry that has been summarized from one that is changed since.
func sourceDigest(e old) string { return string(e.digest[:16]) }

// join adds a reason to others, of which it may be one already.
func join(reasons, more string) string {
	if more == "" || slices.Contains(strings.Split(reasons, "; "), more) {
		return reasons
	}
	return memory.Clip(strings.TrimPrefix(reasons+"; "+more, "; "), 512)
}
