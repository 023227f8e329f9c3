// Package placeholder makes the texts that sandboxes hold in the place of credentials,
// finds them in what the sandboxes send, and replaces them.
//
// A placeholder begins with a public text and ends with characters that follow from a key,
// the sandbox and the credential, so that no table of them is needed. It is found as it
// stands, percent-encoded in a form, and escaped in JSON, also where it comes in pieces.
// It is not found in what is compressed, encrypted or encoded in another way: there it is
// worth as little as anywhere.
//
// [Find] finds the placeholders in the head of a request. A policy's decision says where a
// credential takes the place of its own: the [Request] replaces it there, in the head, the
// body and the messages of a WebSocket. Anywhere else it keeps it from leaving.
//
// How long a search takes, and what of a stream is held back by it, depend on the public
// text and on lengths. The text after the public one is compared in constant time.
package placeholder

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"

	"sallyport/policy"
)

// minPublic is how many characters of a placeholder are public at least, in bytes: the
// search begins with them.
const minPublic = 6

// Held is a placeholder that a sandbox may hold.
type Held struct {
	Credential string
	Text       string
	// Public is how much of Text the search may tell about, in bytes from its beginning.
	Public int
}

// Derive returns the placeholder of a credential for a sandbox.
func Derive(key []byte, sandboxID, credential string, s policy.Shape) Held {
	text := []byte(s.Prefix)
	for n := uint32(0); len(text) < len(s.Prefix)+s.Length; n++ {
		h := hmac.New(sha256.New, key)
		for _, part := range []string{"sallyport placeholder", sandboxID, credential, s.Prefix, s.Alphabet} {
			_ = binary.Write(h, binary.BigEndian, uint32(len(part)))
			h.Write([]byte(part))
		}
		_ = binary.Write(h, binary.BigEndian, n)
		for _, b := range h.Sum(nil) {
			// Bytes that would favour some characters are left out.
			if int(b) < 256/len(s.Alphabet)*len(s.Alphabet) && len(text) < len(s.Prefix)+s.Length {
				text = append(text, s.Alphabet[int(b)%len(s.Alphabet)])
			}
		}
	}
	return Held{Credential: credential, Text: string(text), Public: max(len(s.Prefix), minPublic)}
}
