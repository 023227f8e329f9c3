package echo_test

import (
	"encoding/base64"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"testing"

	"sallyport/gateway/credential/echo"
)

// How much a search does is the same for a text full of parts of the value and for
// one full of parts of another: time tells none of them.
func TestWorkTellsNoPart(t *testing.T) {
	const alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 11))
		random := func(n int) string {
			b := make([]byte, n)
			for i := range b {
				b[i] = alphabet[rnd.IntN(len(alphabet))]
			}
			return string(b)
		}
		n := echo.MinLength + rnd.IntN(60)
		one, two := random(n), random(n)
		form := []func(string) string{
			func(s string) string { return s },
			func(s string) string { return hex.EncodeToString([]byte(s)) },
			func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) },
		}[rnd.IntN(3)]
		// Both have their parts at the same places.
		var a, b strings.Builder
		for a.Len() < 16<<10 {
			x, y := form(one), form(two)
			size := 3 + rnd.IntN(echo.MinLength-3)
			at := rnd.IntN(len(x) - size + 1)
			if rnd.IntN(2) == 0 {
				at = len(x) - size
			}
			between := "~" + random(rnd.IntN(3)) + "~"
			a.WriteString(x[at:at+size] + between)
			b.WriteString(y[at:at+size] + between)
		}
		s := scrubber(one, "Bearer "+one)
		windows, compared := echo.Work(s, []byte(a.String()))
		others, never := echo.Work(s, []byte(b.String()))
		if windows != others || windows < a.Len()/25 || compared != 0 || never != 0 {
			t.Errorf("%q: %d windows looked up and %d compared; %d and %d for another value's parts", one, windows, compared, others, never)
		}
		if _, compared := echo.Work(s, []byte(a.String()+one)); compared == 0 {
			t.Errorf("%q: not compared where it is", one)
		}
	}
}
