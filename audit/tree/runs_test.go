package tree

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// Runs that do not fit in memory come back in order too, and complete.
func TestRuns(t *testing.T) {
	for _, n := range []int{0, 1, 1000, 100_000} {
		var r runs
		defer r.close()
		sum := uint64(0)
		for range n {
			k := rand.Uint64()
			sum += k
			if err := r.add(binary.BigEndian.AppendUint64(nil, k), make([]byte, k%500)); err != nil {
				t.Fatal(err)
			}
		}
		if many := n == 100_000; many != (len(r.ends) > 2) {
			t.Fatalf("%d strings in %d runs", n, len(r.ends))
		}
		var last []byte
		for s, err := range r.sorted() {
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Compare(last, s) > 0 || len(s) != 8+int(binary.BigEndian.Uint64(s)%500) {
				t.Fatalf("%x after %x", s, last)
			}
			last = bytes.Clone(s)
			n--
			sum -= binary.BigEndian.Uint64(s)
		}
		if n != 0 || sum != 0 {
			t.Errorf("%d strings are missing", n)
		}
	}
}
