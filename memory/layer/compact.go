package layer

import (
	"context"
	"errors"
	"time"
)

// summaryFolder has the summaries of old entries.
const summaryFolder = entryFolder + "summaries/"

// CompactOptions say what to compact, and how.
type CompactOptions struct {
	// Before is the time before which an entry must be.
	Before time.Time
	// DryRun returns the plan and changes nothing. It does not call Summarize.
	DryRun bool
	// Summarize returns the text that stands for entries of one type, at most 64 of them
	// and about 64 KiB. nil picks sentences out of them.
	Summarize func(ctx context.Context, entries []Entry) (string, error)
	// Written is called after a summary is written and before the entries that it has been
	// written of are removed. An error ends Compact. nil does nothing.
	Written func(ctx context.Context, s Summary) error
	// Progress is told how many of the entries are done. nil tells nobody.
	Progress func(done, total int)
}

// Summary is one that Compact writes, or adds to.
type Summary struct {
	Path string `json:"path"`
	Type string `json:"type"`
	// Sources are the paths of the entries that are newly in it.
	Sources []string `json:"sources"`
	// Untrusted says why the sources are not trusted, or is "". Trusted and untrusted
	// entries are never in one summary.
	Untrusted string `json:"untrusted,omitempty"`
	// Before and After are the bytes of the sources, and those that the summary has more.
	Before int `json:"bytes_before"`
	After  int `json:"bytes_after,omitempty"`
}

// Plan is what Compact has done, or would do.
type Plan struct {
	Summaries []Summary `json:"summaries"`
	// Kept is how many entries stay as they are, because they instruct.
	Kept int `json:"kept"`
}

// Compact replaces entries before a time by summaries.
func (l *Layers) Compact(ctx context.Context, o CompactOptions) (Plan, error) {
	return Plan{}, errors.ErrUnsupported
}
