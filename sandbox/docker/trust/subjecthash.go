package trust

import (
	"crypto/sha1"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/binary"
	"fmt"
	"strings"
)

// subjectHash returns the name that OpenSSL looks for in a folder of
// certificates: what `openssl x509 -subject_hash` prints. It is the start of
// the SHA-1 of the subject in a canonical form, see OpenSSL's
// crypto/x509/x_name.c: the RDNs without the sequence around them, strings as
// UTF-8 in lower case with single spaces.
func subjectHash(cert *x509.Certificate) (string, error) {
	type attribute struct {
		Type  asn1.ObjectIdentifier
		Value string `asn1:"utf8"`
	}
	type relativeSET []attribute // encoding/asn1 knows a set by its name

	var subject pkix.RDNSequence
	if rest, err := asn1.Unmarshal(cert.RawSubject, &subject); err != nil || len(rest) > 0 {
		return "", fmt.Errorf("reading the certificate's subject: %v", err)
	}
	h := sha1.New()
	for _, rdn := range subject {
		var set relativeSET
		for _, a := range rdn {
			s, ok := a.Value.(string)
			if !ok {
				return "", fmt.Errorf("the certificate's subject has a %T for %v", a.Value, a.Type)
			}
			set = append(set, attribute{a.Type, canonical(s)})
		}
		b, err := asn1.Marshal(set)
		if err != nil {
			return "", fmt.Errorf("hashing the certificate's subject: %w", err)
		}
		h.Write(b)
	}
	return fmt.Sprintf("%08x", binary.LittleEndian.Uint32(h.Sum(nil))), nil
}

// canonical trims and joins white space and lowers letters, of ASCII only.
func canonical(s string) string {
	words := strings.FieldsFunc(s, func(r rune) bool { return r == ' ' || '\t' <= r && r <= '\r' })
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}, strings.Join(words, " "))
}
