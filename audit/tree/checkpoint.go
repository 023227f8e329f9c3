package tree

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit"
)

// State is the state (unmapped.sallyport.state) of a checkpoint's record.
const State = "checkpoint"

// Checkpoint is what a note says of the log. The text of the note is these lines, after
// which it has one signature:
//
//	sallyport/ID            the log, which is the key's name too
//	SIZE                    how many records the tree has
//	ROOT                    its hash in base64
//	time MILLISECONDS       since the Unix epoch, when it was signed
//	record HASH             the leaf that the checkpoint's own record would have with
//	                        number 0 and an empty note: so the record proves itself
//	subtrees HASH HASH …    the roots of the perfect subtrees that the tree consists of,
//	                        largest first: with them, an export that begins here can be
//	                        checked without what is before it
type Checkpoint struct {
	Log  string // sallyport/ID
	Size uint64
	Root tlog.Hash
	Time time.Time
	Note string // with its signature

	record tlog.Hash
	edge   edge
}

func (c *Checkpoint) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%d\n%s\ntime %d\nrecord %s\nsubtrees", c.Log, c.Size, c.Root, c.Time.UnixMilli(), c.record)
	for _, h := range c.edge.roots {
		b.WriteString(" " + h.String())
	}
	return b.String() + "\n"
}

var errMalformed = errors.New("it is not a checkpoint as the daemon writes it")

// ParseCheckpoint checks the signature and the form of a note. There is one way to write
// a checkpoint: any other is an error.
func ParseCheckpoint(text string, key Key) (*Checkpoint, error) {
	n, err := note.Open([]byte(text), note.VerifierList(key.verifier))
	if err != nil {
		return nil, err
	}
	c, err := parse(text)
	if err != nil {
		return nil, err
	}
	if signed, err := note.Sign(n); err != nil || string(signed) != text || len(n.UnverifiedSigs) > 0 || c.Log != key.verifier.Name() {
		return nil, errMalformed
	}
	// Two texts may decode to one signature.
	if _, err := base64.StdEncoding.Strict().DecodeString(n.Sigs[0].Base64); err != nil {
		return nil, errMalformed
	}
	return c, nil
}

// parse reads a note whose signature has been checked.
func parse(text string) (*Checkpoint, error) {
	body, _, ok := strings.Cut(text, "\n\n")
	lines := strings.Split(body, "\n")
	if !ok || len(lines) != 6 {
		return nil, errMalformed
	}
	c := &Checkpoint{Log: lines[0], Note: text}
	size, err := strconv.ParseInt(lines[1], 10, 62)
	if err != nil || size < 0 {
		return nil, errMalformed
	}
	c.Size, c.edge.size = uint64(size), uint64(size)
	millis, err := strconv.ParseInt(strings.TrimPrefix(lines[3], "time "), 10, 64)
	if err != nil {
		return nil, errMalformed
	}
	c.Time = time.UnixMilli(millis)
	var errs [2]error
	c.Root, errs[0] = tlog.ParseHash(lines[2])
	c.record, errs[1] = tlog.ParseHash(strings.TrimPrefix(lines[4], "record "))
	for _, f := range strings.Fields(strings.TrimPrefix(lines[5], "subtrees")) {
		h, err := tlog.ParseHash(f)
		if err != nil {
			return nil, errMalformed
		}
		c.edge.roots = append(c.edge.roots, h)
	}
	if errors.Join(errs[:]...) != nil || c.text() != body+"\n" || !c.edge.whole() || c.edge.root() != c.Root {
		return nil, errMalformed
	}
	return c, nil
}

// sign makes a checkpoint, and its event, which the log gives a number.
func (s *Signer) sign(e edge, now time.Time) (*Checkpoint, *audit.Event, error) {
	event := audit.Change("sallyport", State)
	event.Time = now.UnixMilli()
	event.Message = fmt.Sprintf("checkpoint of %d records", e.size)
	x := &event.Unmapped.Sallyport
	x.Checkpoint = "?"
	line, err := canonical(event)
	if err != nil {
		return nil, nil, err
	}
	c := &Checkpoint{
		Log: s.signer.Name(), Size: e.size, Root: e.root(), Time: now, edge: e.clone(),
		record: tlog.RecordHash(bare(line, "?")),
	}
	signed, err := note.Sign(&note.Note{Text: c.text()}, s.signer)
	if err != nil {
		return nil, nil, fmt.Errorf("signing a checkpoint: %w", err)
	}
	c.Note, x.Checkpoint = string(signed), string(signed)
	return c, event, nil
}

// own reports whether a line is the record that the checkpoint was signed for.
func (c *Checkpoint) own(line []byte) bool {
	b := bare(line, c.Note)
	return b != nil && tlog.RecordHash(b) == c.record
}

// canonical is the line of an event (RFC 8785).
func canonical(e *audit.Event) ([]byte, error) {
	b, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	v := jsontext.Value(b)
	err = v.Canonicalize()
	return v, err
}

// quote is a text as a canonical line has it.
func quote(text string) []byte {
	b, err := jsontext.AppendQuote(nil, text)
	if err != nil {
		return nil
	}
	return b
}
