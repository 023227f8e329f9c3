package tree

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"time"

	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit"
	"sallyport/audit/auditlog"
)

// VerifyLog checks the log in a folder, also while it is written, against its tree, its
// checkpoints and those of an outside copy, which may be none.
//
// It and VerifyExport take less than 100 MB of memory for ten million records, and 100
// bytes a record of the folder for temporary files.
func VerifyLog(ctx context.Context, logDir string, key Key, outside iter.Seq2[*Checkpoint, error]) (*Report, error) {
	v := newVerifier(key)
	defer v.close()
	v.log, v.strict = true, true
	// These first: the log has everything that they have.
	var err error
	if v.newest, err = newest(logDir, key); err != nil {
		v.report.find(Finding{Kind: Tree, Text: err.Error()})
	}
	switch v.store, err = OpenStore(logDir); {
	case errors.Is(err, fs.ErrNotExist) && v.newest == nil:
	case err != nil:
		v.report.find(Finding{Kind: Tree, Text: "the file of hashes cannot be read: " + err.Error()})
	default:
		defer v.store.Close()
		if v.newest != nil && v.store.Size() < v.newest.Size {
			v.report.find(Finding{Kind: Tree, First: v.store.Size() + 1, Last: v.newest.Size, Text: "their hashes are gone from the tree"})
		}
	}
	if err := v.outside(outside); err != nil {
		return nil, err
	}
	for l, err := range auditlog.Entries(ctx, logDir, auditlog.Query{}) {
		var damage *auditlog.DamageError
		switch {
		case errors.As(err, &damage):
			if k := damageKind(damage); k != Missing { // their numbers tell
				v.report.find(Finding{Kind: k, Where: fmt.Sprintf("%s at byte %d", damage.File, damage.Offset), Text: damage.Reason})
			}
			continue
		case err != nil:
			return nil, err
		}
		x := &l.Event.Unmapped.Sallyport
		h := head{Time: l.Event.Time, Action: int(l.Event.Action)}
		h.Metadata.Sequence, h.Metadata.UID, h.Metadata.Correlation = l.Number, l.Event.ID(), l.Event.Metadata.CorrelationUID
		h.Unmapped.Sallyport.Kind, h.Unmapped.Sallyport.State, h.Unmapped.Sallyport.Checkpoint = x.Kind, x.State, x.Checkpoint
		h.Unmapped.Sallyport.deleted = x.Deleted
		if err := v.add(h, l.JSON, false, 0); err != nil {
			return nil, err
		}
	}
	if all, err := auditlog.Segments(logDir); err != nil {
		return nil, err
	} else if len(all) > 0 {
		v.begins = all[0].First
	}
	return v.finish()
}

// VerifyExport checks records that somebody else has kept: one a line, each as it is or
// in what a SIEM wraps it in. They may be in any order, and a part of the log: first is
// the number that they have to begin with, or 0 for any.
//
// With the tree of the log in the folder logDir, which may be "", checkpoints that are
// newer than the export's last record count too.
func VerifyExport(ctx context.Context, from io.Reader, key Key, first uint64, outside iter.Seq2[*Checkpoint, error], logDir string) (*Report, error) {
	v := newVerifier(key)
	defer v.close()
	if logDir != "" {
		var err error
		if v.newest, err = newest(logDir, key); err != nil {
			return nil, err
		}
		if v.newest != nil {
			if v.store, err = OpenStore(logDir); err != nil {
				return nil, err
			}
			defer v.store.Close()
		}
	}
	if v.strict = first > 0; v.strict {
		v.last, v.marked = first-1, first-1
	}
	if err := v.outside(outside); err != nil {
		return nil, err
	}
	before := uint64(0)
	for r, err := range exported(from) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, err
		}
		if !r.ok {
			v.report.Foreign++
			if r.near {
				v.report.find(Finding{Kind: Changed, Where: place(r.at), Text: "what looks like a record and cannot be read as one"})
			}
			continue
		}
		if r.Metadata.Sequence < before {
			v.report.Unordered++
		}
		before = r.Metadata.Sequence
		if n := before; r.altered != "" {
			v.report.find(Finding{Kind: Changed, First: n, Last: n, Where: place(r.at), Text: r.altered})
		}
		if err := v.add(r.head, r.line, r.differs, r.at); err != nil {
			return nil, err
		}
	}
	return v.finish()
}

// head is what Verify needs to know of a record.
type head struct {
	Time     int64 `json:"time"`
	Action   int   `json:"action_id"`
	Metadata struct {
		Sequence    uint64 `json:"sequence"`
		UID         string `json:"uid"`
		Correlation string `json:"correlation_uid"`
	} `json:"metadata"`
	Unmapped struct {
		Sallyport struct {
			Kind       audit.Kind `json:"kind"`
			State      string     `json:"state"`
			Checkpoint string     `json:"checkpoint"`

			deleted *audit.Deletion // of the log's own
		} `json:"sallyport"`
	} `json:"unmapped"`
}

func damageKind(d *auditlog.DamageError) Kind {
	var n, m uint64
	if _, err := fmt.Sscanf(d.Reason, "event %d where %d belongs", &n, &m); err == nil {
		return Misplaced
	}
	if _, err := fmt.Sscanf(d.Reason, "events %d to %d are missing", &n, &m); err == nil {
		return Missing
	}
	return Changed
}

// verifier sorts what it is given by number, and goes through it once.
type verifier struct {
	key    Key
	log    bool
	strict bool        // nothing may be missing at the beginning
	store  *Store      // of a log; nil without
	newest *Checkpoint // likewise
	report Report
	sorted runs // records and checkpoints: a checkpoint stands after the last record that it covers
	ids    runs // of decisions and completions

	deletions []deletion // of the log
	begins    uint64     // number that its first segment begins with

	walk
}

// A string that is sorted is the number, one of these, and the rest.
const (
	aRecord     = iota // its leaf hash, time, flags, line of the export, and size of a checkpoint
	aCheckpoint        // note
	aNewest            // likewise, of the newest of a log that its folder has
	anOutside          // likewise, of an outside copy
)

const (
	timed   = 1 << iota // written when it was made: an allowed decision
	proved              // a checkpoint's own, as it was signed
	differs             // from the hash that is stored beside it
)

func newVerifier(key Key) *verifier {
	return &verifier{key: key, report: Report{Log: key.Log(), Ranges: []Range{}, Findings: []Finding{}}}
}

func (v *verifier) close() {
	v.sorted.close()
	v.ids.close()
}

func entry(number uint64, kind byte) []byte {
	return append(binary.BigEndian.AppendUint64(nil, number), kind)
}

func (v *verifier) outside(all iter.Seq2[*Checkpoint, error]) error {
	if all == nil {
		return nil
	}
	for c, err := range all {
		if err == nil {
			err = v.sorted.add(entry(c.Size, anOutside), []byte(c.Note))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// add takes a record. at is its line in an export.
func (v *verifier) add(h head, line []byte, wrong bool, at uint64) error {
	number, x := h.Metadata.Sequence, &h.Unmapped.Sallyport
	where := place(at)
	if number == 0 {
		v.report.find(Finding{Kind: Changed, Where: where, Text: "a record without a number"})
		return nil
	}
	var flags byte
	size := uint64(0)
	if wrong {
		flags |= differs
	}
	switch {
	case x.Kind == audit.KindCompletion:
		if id, err := uuid.Parse(h.Metadata.Correlation); err == nil {
			if err := v.ids.add(id[:], []byte{0}); err != nil {
				return err
			}
		}
	case x.Kind == audit.KindDecision && h.Action == int(audit.ActionAllowed):
		flags |= timed
		if id, err := uuid.Parse(h.Metadata.UID); err == nil {
			if err := v.ids.add(id[:], []byte{1}, entry(number, 0)); err != nil {
				return err
			}
		}
	case x.State == audit.StateGap:
		v.report.Gaps++
	case x.State == audit.StateDropped:
		v.report.find(Finding{Kind: Gap, First: number, Last: number, Where: where, Text: "the log says that events were lost: see the record's message"})
	case x.State == audit.StateDeleted && x.deleted != nil:
		v.deletions = append(v.deletions, deletion{Deletion: *x.deleted, number: number})
	case x.State == State:
		var unknown *note.UnverifiedNoteError
		switch c, err := ParseCheckpoint(x.Checkpoint, v.key); {
		case errors.As(err, &unknown):
			v.report.find(Finding{Kind: Forked, First: number, Last: number, Where: where, Text: "a checkpoint that another key has signed"})
		case err != nil:
			v.report.find(Finding{Kind: Changed, First: number, Last: number, Where: where, Text: "a checkpoint that is not as it was signed: " + err.Error()})
		default:
			if c.own(line) {
				flags, size = flags|proved, c.Size
			} else {
				v.report.find(Finding{Kind: Changed, First: number, Last: number, Where: where, Text: "a checkpoint's record that is not the one that was signed"})
			}
			if err := v.sorted.add(entry(c.Size, aCheckpoint), []byte(c.Note)); err != nil {
				return err
			}
		}
	}
	hash := tlog.RecordHash(line)
	rest := append(binary.BigEndian.AppendUint64(nil, uint64(h.Time)), flags)
	rest = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(rest, at), size)
	return v.sorted.add(entry(number, aRecord), hash[:], rest)
}

func place(at uint64) string {
	if at == 0 {
		return ""
	}
	return fmt.Sprintf("line %d", at)
}

// finish goes through what was sorted.
func (v *verifier) finish() (*Report, error) {
	if v.newest != nil {
		if err := v.sorted.add(entry(v.newest.Size, aNewest), []byte(v.newest.Note)); err != nil {
			return nil, err
		}
	}
	v.sortDeletions()
	for b, err := range v.sorted.sorted() {
		if err != nil {
			return nil, err
		}
		number, rest := binary.BigEndian.Uint64(b), b[9:]
		if b[8] == aRecord {
			v.deleted(number - 1)
			v.record(number, stored{
				leaf: tlog.Hash(rest[:32]), time: int64(binary.BigEndian.Uint64(rest[32:])), flags: rest[40],
				at: binary.BigEndian.Uint64(rest[41:]), size: binary.BigEndian.Uint64(rest[49:]),
			})
			continue
		}
		c, err := parse(string(rest))
		if err != nil {
			return nil, err
		}
		v.deleted(number)
		if b[8] == aCheckpoint {
			v.checkpoint(c)
		} else {
			v.anchor(c, b[8] == anOutside)
		}
	}
	v.end()
	v.undeleted()
	return &v.report, v.pair()
}

// pair lists decisions without completions: sorted by id, a completion is before its
// decision.
func (v *verifier) pair() error {
	var completed uuid.UUID
	for b, err := range v.ids.sorted() {
		if err != nil {
			return err
		}
		id := uuid.UUID(b[:16])
		switch {
		case b[16] == 0:
			completed = id
		case id != completed:
			completed = id // once, however often it was exported
			if v.report.IncompleteCount++; len(v.report.Incomplete) < maxListed {
				v.report.Incomplete = append(v.report.Incomplete, Incomplete{id.String(), binary.BigEndian.Uint64(b[17:])})
			}
		}
	}
	return nil
}

// Checkpoints reads those of an outside copy: an export, or notes as they are.
func Checkpoints(from io.Reader, key Key) iter.Seq2[*Checkpoint, error] {
	return func(yield func(*Checkpoint, error) bool) {
		for text, err := range notes(from) {
			var c *Checkpoint
			if err == nil {
				if c, err = ParseCheckpoint(text, key); err != nil {
					err = fmt.Errorf("a checkpoint that %s has not signed: %w", key.Log(), err)
				}
			}
			if !yield(c, err) || err != nil {
				return
			}
		}
	}
}

// Slack of clocks.
const (
	slack     = time.Minute // of decisions that are written side by side
	noteSlack = time.Second // of checkpoints, which are written one after the other
)
