package trust

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"strings"
)

// nssDatabase is where a user's NSS trust database lies below the home folder.
// Chromium reads it there in every version; newer ones look elsewhere only
// where there is none.
// https://chromium.googlesource.com/chromium/src/+/main/docs/linux/cert_management.md
const nssDatabase = ".pki/nssdb/cert9.db"

// nssColumns are the attributes that NSS gives its table of public objects a
// column for, by their numbers in hexadecimal. A query that names a column that
// is not there fails, so all are.
const nssColumns = `a0 a1 a2 a3 a10 a11 a12 a80 a81 a82 a83 a84 a85 a86 a87 a88 a89 a8a a8b a90
	a100 a101 a102 a103 a104 a105 a106 a107 a108 a109 a10a a10b a10c a110 a111 a120 a121 a122 a123 a124
	a125 a126 a127 a128 a129 a130 a131 a132 a133 a134 a160 a161 a162 a163 a164 a165 a166 a170 a180 a181
	a200 a201 a202 a210 a300 a301 a302 a400 a401 a402 a403 a404 a405 a406 a480 a481 a482 a500 a501 a502
	a503 a40000211 a40000212 a80000001 ace534351 ace534352 ace534353 ace534354 ace534355 ace534356
	ace534357 ace534358 ace534364 ace534365 ace534366 ace534367 ace534368 ace534369 ace534373 ace534374
	ace536351 ace536352 ace536353 ace536354 ace536355 ace536356 ace536357 ace536358 ace536359 ace53635a
	ace53635b ace53635c ace53635d ace53635e ace53635f ace536360 ace5363b4 ace5363b5 ad5a0db00`

// newNSSDatabase returns the SQLite file in which NSS keeps certificates, with
// one root that vouches for servers. NSS makes the other files of its folder
// itself.
func newNSSDatabase(root *x509.Certificate) ([]byte, error) {
	// Attributes of PKCS #11, and NSS's own (pkcs11n.h).
	const (
		class       = "a0"
		token       = "a1"
		private     = "a2"
		label       = "a3"
		value       = "a11"
		kind        = "a80"
		issuer      = "a81"
		serial      = "a82"
		subject     = "a101"
		id          = "a102"
		modifiable  = "a170"
		forServers  = "ace536358"
		forClients  = "ace536359"
		forCode     = "ace53635a"
		forMail     = "ace53635b"
		stepUp      = "ace536360"
		sha1OfRoot  = "ace5363b4"
		md5OfRoot   = "ace5363b5"
		certificate = "\x00\x00\x00\x01"
		trust       = "\xce\x53\x43\x53"
		trusted     = "\xce\x53\x43\x52" // as an authority
		unsaid      = "\xce\x53\x43\x53"
		yes, no     = "\x01", "\x00"
	)
	der := string(root.Raw)
	key := sha1.Sum(root.RawSubjectPublicKeyInfo)
	byContent, byMD5 := sha1.Sum(root.Raw), md5.Sum(root.Raw)
	name, number := string(root.RawIssuer), integer(root)
	return newDatabase("nssPublic", "id", strings.Fields(nssColumns), []map[string]string{
		{
			class: certificate, token: yes, private: no, label: "Sallyport", value: der, kind: "\x00\x00\x00\x00",
			issuer: name, serial: number, subject: string(root.RawSubject), id: string(key[:]), modifiable: yes,
		},
		{
			class: trust, token: yes, private: no, label: "Sallyport", issuer: name, serial: number, modifiable: yes,
			forServers: trusted, forClients: unsaid, forCode: unsaid, forMail: unsaid, stepUp: no,
			sha1OfRoot: string(byContent[:]), md5OfRoot: string(byMD5[:]),
		},
	})
}

// integer is the serial number in DER.
func integer(c *x509.Certificate) string {
	b := c.SerialNumber.Bytes()
	if len(b) == 0 || b[0]&0x80 != 0 {
		b = append([]byte{0}, b...)
	}
	return string(append([]byte{2, byte(len(b))}, b...))
}

// newDatabase returns an SQLite file of one table whose rows fit into a page:
// an integer as the primary key, which counts from one, and columns of blobs,
// which are NULL where a row has none. https://www.sqlite.org/fileformat2.html
func newDatabase(table, key string, columns []string, rows []map[string]string) ([]byte, error) {
	const page = 4096
	file := make([]byte, 2*page)
	copy(file, "SQLite format 3\x00")
	binary.BigEndian.PutUint16(file[16:], page)
	copy(file[18:], []byte{1, 1, 0, 64, 32, 32}) // no WAL, nothing reserved, fixed fractions
	for at, n := range map[int]uint32{
		24: 1,       // changes
		28: 2,       // pages
		40: 1,       // schema's version
		44: 4,       // schema's format
		56: 1,       // UTF-8
		92: 1,       // changes as of the version below
		96: 3040001, // of SQLite
	} {
		binary.BigEndian.PutUint32(file[at:], n)
	}
	schema := fmt.Sprintf("CREATE TABLE %s (%s INTEGER PRIMARY KEY, %s)", table, key, strings.Join(columns, ", "))
	describe := record([]field{{text: "table"}, {text: table}, {text: table}, {number: 2}, {text: schema}})
	if err := leaf(file[:page], 100, [][]byte{describe}); err != nil {
		return nil, err
	}
	var records [][]byte
	for _, row := range rows {
		fields := []field{{null: true}} // it stands in the cell's head
		for _, c := range columns {
			v, ok := row[c]
			fields = append(fields, field{null: !ok, blob: v})
		}
		records = append(records, record(fields))
	}
	return file, leaf(file[page:], 0, records)
}

// field is a value: NULL, a small number, a blob or else a text.
type field struct {
	null       bool
	number     byte
	blob, text string
}

// record is a row in SQLite's encoding: the types of its values, then these.
func record(fields []field) []byte {
	var types, values []byte
	for _, f := range fields {
		switch {
		case f.null:
			types = append(types, 0)
		case f.number != 0:
			types = append(types, 1)
			values = append(values, f.number)
		case f.text != "":
			types = varint(types, 2*len(f.text)+13)
			values = append(values, f.text...)
		default:
			types = varint(types, 2*len(f.blob)+12)
			values = append(values, f.blob...)
		}
	}
	size := len(types) + 1
	if size > 0x7f {
		size++ // takes two bytes
	}
	return append(append(varint(nil, size), types...), values...)
}

// leaf fills a page with records, numbered from one. The page's own head begins
// at a place in it.
func leaf(page []byte, head int, records [][]byte) error {
	page[head] = 0x0d
	end, pointer := len(page), head+8
	binary.BigEndian.PutUint16(page[head+3:], uint16(len(records)))
	for i, r := range records {
		cell := append(varint(varint(nil, len(r)), i+1), r...)
		end -= len(cell)
		if end < pointer+2 {
			return fmt.Errorf("a record of %d bytes does not fit into a page of %d", len(r), len(page))
		}
		copy(page[end:], cell)
		binary.BigEndian.PutUint16(page[pointer:], uint16(end))
		pointer += 2
	}
	binary.BigEndian.PutUint16(page[head+5:], uint16(end))
	return nil
}

// varint appends a number in SQLite's encoding, of two bytes at most.
func varint(b []byte, n int) []byte {
	if n > 0x7f {
		b = append(b, byte(n>>7)|0x80)
	}
	return append(b, byte(n&0x7f))
}
