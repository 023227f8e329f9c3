// Package encoding turns records of the audit log into the words of other systems.
//
// Each encoding is a pure function: the same record is always the same bytes, so that an
// export can be encoded again from what it says the record was, and compared. Each holds
// the record whole: the encoding of the log itself as it is stored, the others as text in
// one of their fields. No value is left out of it or made up.
//
// To add an encoding: an [Encoder], its name in encoders and [Names], and in decode.go how the
// record is found in it.
package encoding

import (
	"encoding/hex"
	"fmt"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit"
	"sallyport/audit/auditlog"
)

// Encoder encodes a record, without a newline.
type Encoder func(auditlog.Entry) ([]byte, error)

// Origin says which log a record is from, and by which key the log's checkpoints are
// signed. Empty fields are left out.
type Origin struct {
	Log string
	Key string
}

// encoders are the encodings by name.
var encoders = map[string]func(Origin) Encoder{
	"ocsf":     func(o Origin) Encoder { return o.stored },
	"ocsf-1.8": func(o Origin) Encoder { return o.mapped(ocsf18) },
	"ocsf-1.5": func(o Origin) Encoder { return o.mapped(ocsf15) },
	"ecs":      func(o Origin) Encoder { return o.ecs },
	"cef":      func(o Origin) Encoder { return o.cef },
}

// Names are those of the encodings, the first of which is the default.
func Names() []string { return []string{"ocsf", "ocsf-1.8", "ocsf-1.5", "ecs", "cef"} }

// ByName returns an encoding.
func ByName(name string, o Origin) (Encoder, error) {
	e, ok := encoders[name]
	if !ok {
		return nil, fmt.Errorf("no encoding %q: use %s", name, strings.Join(Names(), ", "))
	}
	return e(o), nil
}

// shown is an event for encodings that know no evidence: a finding says itself what the
// first one says.
func shown(e *audit.Event) *audit.Event {
	if len(e.Evidences) == 0 {
		return e
	}
	by, flat := e.Evidences[0], *e
	flat.Actor, flat.Connection, flat.HTTPRequest, flat.TLS = by.Actor, by.Connection, by.HTTPRequest, by.TLS
	flat.Source, flat.Destination = by.Source, by.Destination
	return &flat
}

// leaf is the hash of a record in the log's tree (RFC 6962, section 2.1), in hexadecimal
// digits.
func leaf(line []byte) string {
	h := tlog.RecordHash(line)
	return hex.EncodeToString(h[:])
}
