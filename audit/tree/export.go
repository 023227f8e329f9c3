package tree

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit/encoding"
)

// exportedRecord is a record of an export, or a line that has none.
type exportedRecord struct {
	head
	ok      bool
	near    bool   // it is none, and somebody may take it for one
	line    []byte // as the log has it
	differs bool   // from the hash that the export has beside it
	altered string // what is beside it, and not as in it
	at      uint64 // its line
}

// wrappers are the members in which a SIEM or a collector has a record, as an object or
// as text: Splunk (result._raw, event), Elasticsearch (_source), OTLP (body of a log
// record), ECS (event.original), OCSF of another version (raw_data), and a message.
var wrappers = []string{
	"raw_data", "result", "_raw", "_source", "event.original", "event", "original",
	"resourceLogs", "scopeLogs", "logRecords", "body", "stringValue", "message",
}

// originals are those of wrappers that an encoding has beside its fields.
var originals = []string{"raw_data", "event.original", "original"}

const (
	maxWraps  = 12
	maxExport = 4 << 20 // bytes of a line
	maxNote   = 64 << 10
)

// exported reads the records of an export.
func exported(from io.Reader) iter.Seq2[exportedRecord, error] {
	return func(yield func(exportedRecord, error) bool) {
		lines := bufio.NewReaderSize(from, maxExport)
		for at := uint64(1); ; at++ {
			b, err := lines.ReadSlice('\n')
			if errors.Is(err, bufio.ErrBufferFull) {
				for errors.Is(err, bufio.ErrBufferFull) {
					_, err = lines.ReadSlice('\n')
				}
				if !yield(exportedRecord{at: at, near: true}, nil) {
					return
				}
				b = nil
			}
			if text := bytes.TrimSpace(b); len(text) > 0 {
				found, going := false, true
				unwrap(text, 0, false, func(r exportedRecord) {
					r.at, found = at, true
					going = going && yield(r, nil)
				})
				if !found {
					going = yield(exportedRecord{at: at}, nil)
				}
				if !going {
					return
				}
			}
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(exportedRecord{}, err)
				return
			}
		}
	}
}

// unwrap calls f with the records in a text: a JSON value, or a syslog line that ends in one.
// beside says that it is in an object of an unknown encoding, which has other fields.
func unwrap(text []byte, depth int, beside bool, f func(exportedRecord)) {
	if len(text) == 0 {
		return
	}
	if depth > maxWraps {
		unreadable(text, f)
		return
	}
	switch v := jsontext.Value(text); v.Kind() {
	case '[':
		var all []json.RawMessage
		if json.Unmarshal(text, &all) != nil {
			unreadable(text, f)
		}
		for _, one := range all {
			unwrap(one, depth+1, beside, f)
		}
		return
	case '"':
		inner, err := jsontext.AppendUnquote(nil, text)
		if err != nil {
			unreadable(text, f)
			return
		}
		unwrap(bytes.TrimSpace(inner), depth+1, beside, f)
		return
	case '{':
	default:
		if bytes.Contains(text, []byte("CEF:0|")) {
			if r, ok := readMapped(text); ok {
				f(r)
			} else {
				unreadable(text, f)
			}
			return
		}
		// The text before the message cannot hold one: a brace begins each record.
		if i := bytes.IndexByte(text, '{'); i > 0 {
			unwrap(text[i:], depth+1, beside, f)
		}
		return
	}
	var members map[string]json.RawMessage
	// A name that is there twice is not valid: readers would not agree on which counts.
	if !jsontext.Value(text).IsValid() || json.Unmarshal(text, &members) != nil {
		unreadable(text, f)
		return
	}
	_, isOCSF := members["metadata"]
	_, isECS := members["ecs"]
	if isOCSF && (members["raw_data"] == nil || members[attestation] != nil) {
		f(readRecord(text))
		return
	}
	if isOCSF || isECS {
		if r, ok := readMapped(text); ok {
			f(r)
			return
		}
	}
	beside = beside || len(members) > 1
	for _, name := range wrappers {
		inner, ok := members[name]
		if !ok {
			continue
		}
		found, original := false, slices.Contains(originals, name)
		unwrap(inner, depth+1, beside && (original || name == "event"), func(r exportedRecord) {
			if found = true; original && beside && r.altered == "" {
				r.altered = "what stands beside " + name + " is in no encoding of this program and cannot be compared with it: export that alone"
			}
			f(r)
		})
		if found {
			return
		}
	}
	if isOCSF {
		f(exportedRecord{near: true})
	}
}

// unreadable calls f for a text that cannot be read, if others may take it for a record:
// they may read more than we do, and names can be escaped.
func unreadable(text []byte, f func(exportedRecord)) {
	if bytes.Contains(text, []byte("metadata")) || bytes.Contains(text, []byte(`\u00`)) {
		f(exportedRecord{near: true})
	}
}

// attestation is where an export has the leaf hash of its record (OCSF, profile
// record_integrity).
const attestation = "attestation_list"

const notAsIn = " is not as in the record that it stands beside"

// readRecord takes what an encoding adds from a record.
func readRecord(text []byte) (r exportedRecord) {
	line, hash, err := encoding.Stored(text)
	var differs *encoding.DiffersError
	if r = readLine(line); err != nil && !errors.As(err, &differs) || !r.ok {
		return exportedRecord{near: true}
	}
	if differs != nil {
		r.altered = differs.Field + notAsIn
	}
	if claimed, has := parseHash(hash); has {
		r.differs = tlog.RecordHash(r.line) != claimed
	}
	return r
}

// readMapped reads a record that is in another encoding than the log's, and what of it
// that encoding would not say. ok is false where there is none.
func readMapped(text []byte) (r exportedRecord, ok bool) {
	line, err := encoding.Original(text)
	var differs *encoding.DiffersError
	if err != nil && !errors.As(err, &differs) {
		return r, false
	}
	if r = readLine(line); r.ok && differs != nil {
		r.altered = differs.Field + notAsIn
	}
	return r, r.ok
}

// readLine reads a record as the log has it.
func readLine(line []byte) (r exportedRecord) {
	r.line = line
	r.ok = line != nil && json.Unmarshal(line, &r.head) == nil
	return r
}

// parseHash reads a hash in hexadecimal digits or base64.
func parseHash(text string) (h tlog.Hash, ok bool) {
	b, err := hex.DecodeString(text)
	if err != nil {
		b, err = base64.StdEncoding.DecodeString(text)
	}
	return tlog.Hash(append(b, h[:]...)[:len(h)]), err == nil && len(b) == len(h)
}

// notes yields the texts of checkpoints in an export, or those that stand for themselves.
func notes(from io.Reader) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		buffered := bufio.NewReaderSize(from, maxNote)
		if start, err := buffered.Peek(10); err != nil || string(start) != "sallyport/" {
			for r, err := range exported(buffered) {
				x := &r.Unmapped.Sallyport
				if err == nil && (!r.ok || x.State != State) {
					continue
				}
				if !yield(x.Checkpoint, err) {
					return
				}
			}
			return
		}
		var text strings.Builder
		for {
			line, err := buffered.ReadSlice('\n')
			if text.Write(line); errors.Is(err, bufio.ErrBufferFull) || text.Len() > maxNote {
				yield("", errMalformed)
				return
			}
			if bytes.HasPrefix(line, []byte("— ")) {
				if !yield(strings.TrimLeft(text.String(), "\n"), nil) {
					return
				}
				text.Reset()
			}
			if err != nil {
				if !errors.Is(err, io.EOF) {
					yield("", err)
				}
				return
			}
		}
	}
}
