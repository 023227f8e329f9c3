package trust

import (
	"bytes"
	"crypto/sha1"
	"crypto/x509"
	"encoding/asn1"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
	"unicode/utf16"

	"software.sslmate.com/src/go-pkcs12"
)

// storePassword is what every Java distribution seals its roots with; it keeps
// nothing secret.
const storePassword = "changeit"

// alias is our entry's in a Java key store.
const alias = "sallyport"

// mergeJavaStore adds a root to a Java trust store and keeps its format: JKS, as
// built up to JDK 17 and by Debian, or PKCS #12 (RFC 7292), as since JDK 18.
//
// The store is an image's and may be hostile, so that nothing is allocated or
// computed in proportion to what it claims.
func mergeJavaStore(store []byte, root *x509.Certificate) ([]byte, error) {
	if bytes.Contains(store, root.Raw) {
		return store, nil
	}
	if bytes.HasPrefix(store, jksMagic) {
		return mergeJKS(store, root)
	}
	return mergePKCS12(store, root)
}

var jksMagic = []byte{0xfe, 0xed, 0xfe, 0xed}

// mergeJKS appends an entry to a JKS key store, whose layout is in OpenJDK's
// sun/security/provider/JavaKeyStore.java: magic, version and count of 32 bits
// each, the entries, and a SHA-1 over password, a phrase and all of it.
func mergeJKS(store []byte, root *x509.Certificate) ([]byte, error) {
	const header, version, trusted = 12, 2, 2
	body := len(store) - sha1.Size
	if body < header || binary.BigEndian.Uint32(store[4:]) != version {
		return nil, errors.New("a JKS key store that is not of version 2")
	}
	if sum := jksSum(store[:body]); !bytes.Equal(sum, store[body:]) {
		return nil, fmt.Errorf("a JKS key store whose password is not %q", storePassword)
	}
	out := append([]byte(nil), store[:body]...)
	binary.BigEndian.PutUint32(out[8:], binary.BigEndian.Uint32(store[8:])+1)
	out = binary.BigEndian.AppendUint32(out, trusted)
	out = appendUTF(out, alias)
	out = binary.BigEndian.AppendUint64(out, uint64(time.Now().UnixMilli()))
	out = appendUTF(out, "X.509")
	out = binary.BigEndian.AppendUint32(out, uint32(len(root.Raw)))
	out = append(out, root.Raw...)
	return append(out, jksSum(out)...), nil
}

func jksSum(body []byte) []byte {
	h := sha1.New()
	binary.Write(h, binary.BigEndian, utf16.Encode([]rune(storePassword)))
	h.Write([]byte("Mighty Aphrodite"))
	h.Write(body)
	return h.Sum(nil)
}

// appendUTF appends s as java.io.DataOutput.writeUTF does for ASCII.
func appendUTF(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

// encryptedData is the DER of the content type of RFC 5652, section 8.
var encryptedData = []byte{0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x06}

// mergePKCS12 writes a PKCS #12 store anew. Only one without password is taken:
// Java's own is, and one with a password says itself how long to work on it.
func mergePKCS12(store []byte, root *x509.Certificate) ([]byte, error) {
	var pfx struct {
		Version  int
		AuthSafe asn1.RawValue
		MacData  asn1.RawValue `asn1:"optional"`
	}
	if _, err := asn1.Unmarshal(store, &pfx); err != nil {
		return nil, errors.New("neither a JKS nor a PKCS #12 key store")
	}
	if len(pfx.MacData.FullBytes) > 0 || bytes.Contains(store, encryptedData) {
		return nil, errors.New("a PKCS #12 key store with a password")
	}
	certs, err := pkcs12.DecodeTrustStore(store, "")
	if err != nil {
		return nil, fmt.Errorf("a PKCS #12 key store: %w", err)
	}
	entries := []pkcs12.TrustStoreEntry{{Cert: root, FriendlyName: alias}}
	for i, c := range certs {
		entries = append(entries, pkcs12.TrustStoreEntry{Cert: c, FriendlyName: fmt.Sprintf("root-%d", i)})
	}
	out, err := pkcs12.Passwordless.EncodeTrustStoreEntries(entries, "")
	if err != nil {
		return nil, fmt.Errorf("writing the PKCS #12 key store: %w", err)
	}
	return out, nil
}
