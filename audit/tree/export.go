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
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/mod/sumdb/tlog"
)

// exportedRecord is a record of an export, or a line that has none.
type exportedRecord struct {
	head
	ok      bool
	near    bool   // it is none, and somebody may take it for one
	line    []byte // as the log has it
	differs bool   // from the hash that the export has beside it
	at      uint64 // its line
}

// wrappers are the members in which a SIEM or a collector has a record, as an object or
// as text: Splunk (result._raw, event), Elasticsearch (_source), OTLP (body of a log
// record), ECS (event.original), OCSF of another version (raw_data), and a message.
var wrappers = []string{
	"raw_data", "result", "_raw", "_source", "event.original", "event", "original",
	"resourceLogs", "scopeLogs", "logRecords", "body", "stringValue", "message",
}

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
				unwrap(text, 0, func(r exportedRecord) {
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
func unwrap(text []byte, depth int, f func(exportedRecord)) {
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
			unwrap(one, depth+1, f)
		}
		return
	case '"':
		inner, err := jsontext.AppendUnquote(nil, text)
		if err != nil {
			unreadable(text, f)
			return
		}
		unwrap(bytes.TrimSpace(inner), depth+1, f)
		return
	case '{':
	default:
		// What is before the message cannot hold one: {"metadata" begins each record.
		if i := bytes.IndexByte(text, '{'); i > 0 {
			unwrap(text[i:], depth+1, f)
		}
		return
	}
	names, members, err := split(text)
	if err != nil {
		unreadable(text, f)
		return
	}
	_, isWhole := members["metadata"]
	if raw := members["raw_data"]; isWhole && raw == nil {
		f(readRecord(names, members))
		return
	}
	for _, name := range wrappers {
		inner, ok := members[name]
		found := false
		if ok {
			unwrap(inner, depth+1, func(r exportedRecord) { found = true; f(r) })
		}
		if found {
			return
		}
	}
	if isWhole {
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

// split reads the members of an object in their order. A name that is there twice is an
// error: readers would not agree on which counts.
func split(text []byte) (names []string, members map[string]jsontext.Value, err error) {
	d := jsontext.NewDecoder(bytes.NewReader(text))
	if _, err := d.ReadToken(); err != nil {
		return nil, nil, err
	}
	members = map[string]jsontext.Value{}
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return nil, nil, err
		}
		text := name.String()
		value, err := d.ReadValue()
		if err != nil {
			return nil, nil, err
		}
		names, members[text] = append(names, text), value.Clone()
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, nil, err
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, nil, errors.New("more follows")
	}
	return names, members, nil
}

// attestation is where an export has the leaf hash of its record (OCSF, profile
// record_integrity).
const attestation = "attestation_list"

// readRecord takes what an encoding adds from a record.
func readRecord(names []string, members map[string]jsontext.Value) (r exportedRecord) {
	var b bytes.Buffer
	for _, n := range names {
		if n == attestation {
			continue
		}
		b.WriteByte(",{"[min(1, max(0, 1-b.Len()))])
		b.Write(quote(n))
		b.WriteByte(':')
		b.Write(members[n])
	}
	b.WriteByte('}')
	r.line = b.Bytes()
	if json.Unmarshal(r.line, &r.head) != nil {
		r.near = true
		return r
	}
	r.ok = true
	plain := jsontext.Value(bytes.Clone(r.line))
	canonicalErr := plain.Canonicalize()
	claimed, has := fingerprint(members[attestation])
	if canonicalErr == nil && (!has || tlog.RecordHash(r.line) != claimed) {
		r.line = plain // the receiver has changed the order or the spaces
	}
	r.differs = has && tlog.RecordHash(r.line) != claimed
	return r
}

// fingerprint is the hash in a record's attestation, in hexadecimal digits or base64.
func fingerprint(list jsontext.Value) (h tlog.Hash, ok bool) {
	var all []struct {
		Fingerprint struct {
			Value string `json:"value"`
		} `json:"fingerprint"`
	}
	if list == nil || json.Unmarshal(list, &all) != nil || len(all) == 0 {
		return h, false
	}
	text := all[0].Fingerprint.Value
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
