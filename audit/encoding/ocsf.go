package encoding

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"sallyport/audit"
	"sallyport/audit/auditlog"
)

// The stored form has these in addition when it is sent: the record's leaf hash, and the
// profile of OCSF that it is from.
const (
	attestations = "attestation_list"
	integrity    = "record_integrity"
	rawData      = "raw_data"
)

// attestation is OCSF's, of a record.
type attestation struct {
	Authority   string      `json:"authority_uid,omitempty"`
	Chain       string      `json:"chain_uid,omitempty"`
	Fingerprint fingerprint `json:"fingerprint"`
}

type fingerprint struct {
	Algorithm       string `json:"algorithm"`
	AlgorithmID     int    `json:"algorithm_id"`
	Encoding        string `json:"encoding"`
	EncodingID      int    `json:"encoding_id"`
	Serialization   string `json:"serialization"`
	SerializationID int    `json:"serialization_id"`
	Value           string `json:"value"`
}

func (o Origin) attest(line []byte) ([]byte, error) {
	return json.Marshal([]attestation{{
		Authority: o.Key, Chain: o.Log,
		Fingerprint: fingerprint{"SHA-256", 3, "Hex", 1, "JCS", 2, leaf(line)},
	}})
}

// stored is the record as the log has it, with the hash that it has in the log's tree. A
// line that cannot be told from that, as one that is not in canonical form (RFC 8785)
// because an older Sallyport wrote it, is in raw_data too.
func (o Origin) stored(r auditlog.Entry) ([]byte, error) {
	all, err := members(r.JSON)
	if err != nil {
		return nil, fmt.Errorf("record %d: %w", r.Number, err)
	}
	if all[attestations], err = o.attest(r.JSON); err != nil {
		return nil, err
	}
	if err := profiled(all, func(names []string) []string {
		at := slices.IndexFunc(names, func(n string) bool { return n > integrity })
		if at < 0 {
			at = len(names)
		}
		return slices.Insert(names, at, integrity)
	}); err != nil {
		return nil, fmt.Errorf("record %d: %w", r.Number, err)
	}
	b, err := canonical(all)
	if err != nil {
		return nil, fmt.Errorf("record %d: %w", r.Number, err)
	}
	if line, _, err := Stored(b); err == nil && bytes.Equal(line, r.JSON) {
		return b, nil
	}
	if all[rawData], err = json.Marshal(string(r.JSON)); err != nil {
		return nil, err
	}
	return canonical(all)
}

// Stored returns the line of the log from a record in the encoding "ocsf", which its
// receiver may have formatted in another way. The hash is what the record says that the
// line has in the log's tree, empty for none. With a *DiffersError the record is not what
// the line in it says.
func Stored(record []byte) (line []byte, hash string, err error) {
	all, err := members(record)
	if err != nil {
		return nil, "", err
	}
	var list []attestation
	if json.Unmarshal(all[attestations], &list) == nil && len(list) > 0 {
		hash = list[0].Fingerprint.Value
	}
	delete(all, attestations)
	var raw *string
	if json.Unmarshal(all[rawData], &raw) == nil && raw != nil {
		delete(all, rawData)
	}
	if err := profiled(all, func(names []string) []string {
		return slices.DeleteFunc(names, func(n string) bool { return n == integrity })
	}); err != nil {
		return nil, "", err
	}
	b, err := canonical(all)
	if err != nil || raw == nil {
		return b, hash, err
	}
	line = []byte(*raw)
	plain := jsontext.Value(bytes.Clone(line))
	if plain.Canonicalize() != nil || !bytes.Equal(plain, b) {
		return line, hash, &DiffersError{"what stands beside " + rawData}
	}
	return line, hash, nil
}

// profiled changes the profiles of an event's metadata, if it has metadata.
func profiled(event map[string]json.RawMessage, change func([]string) []string) error {
	if event["metadata"] == nil {
		return nil
	}
	all, err := members(event["metadata"])
	if err != nil {
		return err
	}
	var names []string
	if text, ok := all["profiles"]; ok {
		if err := json.Unmarshal(text, &names); err != nil {
			return err
		}
	}
	if names = change(names); len(names) == 0 {
		delete(all, "profiles")
	} else if all["profiles"], err = json.Marshal(names); err != nil {
		return err
	}
	event["metadata"], err = json.Marshal(all)
	return err
}

var errNoObject = errors.New("it is no JSON object, or has a name twice")

// members reads an object. A name that is there twice is an error: readers would not agree
// on which counts.
func members(object []byte) (all map[string]json.RawMessage, err error) {
	if v := jsontext.Value(object); v.Kind() != '{' || !v.IsValid() {
		return nil, errNoObject
	}
	return all, json.Unmarshal(object, &all)
}

// canonical is an object in the form of RFC 8785.
func canonical(all map[string]json.RawMessage) ([]byte, error) {
	b, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	v := jsontext.Value(b)
	return v, v.Canonicalize()
}

// older is a version of OCSF that has less.
type older struct {
	version string
	methods []string // in the order of their activities
}

// The methods that OCSF has numbers for before 1.9.
var (
	methods15 = []string{"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT", "TRACE"}
	methods18 = append(slices.Clone(methods15), "PATCH")
)

var (
	ocsf15 = older{version: "1.5.0", methods: methods15}
	ocsf18 = older{version: "1.8.0", methods: methods18}
)

// exported is an event in an older version, with the record in the version of the log.
type exported struct {
	audit.Event
	RawData  string         `json:"raw_data"`
	Unmapped mappedUnmapped `json:"unmapped"`
}

type mappedUnmapped struct {
	Leaf      string          `json:"leaf_hash"`
	Log       string          `json:"log,omitempty"`
	Sallyport audit.Extension `json:"sallyport"`
}

// mapped leaves out what an older version has no attribute for, and has the record in
// raw_data. Fields that are left out are in unmapped.sallyport too.
func (o Origin) mapped(to older) Encoder {
	return func(r auditlog.Entry) ([]byte, error) {
		x := exported{
			Event: *r.Event, RawData: string(r.JSON),
			Unmapped: mappedUnmapped{leaf(r.JSON), o.Log, r.Event.Unmapped.Sallyport},
		}
		e := &x.Event
		e.Metadata.Version = to.version
		if e.ClassUID == audit.ClassHTTP && e.ActivityID > len(to.methods) && e.ActivityID != audit.ActivityOther {
			e.ActivityID, e.ActivityName = audit.ActivityOther, e.Method()
			e.TypeUID = int(e.ClassUID)*100 + e.ActivityID
		}
		if q := e.HTTPRequest; q != nil && !slices.Contains(to.methods, q.Method) {
			x.Unmapped.Sallyport.Method = e.Method()
			e.HTTPRequest = without(q)
		}
		e.Evidences = slices.Clone(e.Evidences)
		for i, by := range e.Evidences {
			if q := by.HTTPRequest; q != nil && !slices.Contains(to.methods, q.Method) {
				e.Evidences[i].HTTPRequest = without(q)
			}
		}
		e.Model, e.MessageContext = nil, nil // of no class of ours
		e.Metadata.Profiles = slices.DeleteFunc(slices.Clone(e.Metadata.Profiles), func(p string) bool { return p == "ai_operation" })
		return marshal(x)
	}
}

// without is a request without its method.
func without(q *audit.HTTPRequest) *audit.HTTPRequest {
	other := *q
	other.Method = ""
	return &other
}

// marshal is json.Marshal without escapes that only HTML needs.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
