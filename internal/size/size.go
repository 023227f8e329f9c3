// Package size writes numbers of bytes as people read them.
package size

import (
	"math"
	"strconv"
)

var units = []struct {
	name  string
	bytes int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// Text is exact: in the largest unit that divides the bytes.
func Text(bytes int64) string {
	for _, u := range units {
		if bytes != 0 && bytes%u.bytes == 0 {
			return strconv.FormatInt(bytes/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(bytes, 10) + "B"
}

// About has the first four digits of the bytes, in the largest unit of which there
// is one. It is never more than they are, so that what is short of a whole looks so.
func About(bytes int64) string {
	for _, u := range units {
		if bytes >= u.bytes || -bytes >= u.bytes {
			n := float64(bytes) / float64(u.bytes)
			digits := math.Pow10(3 - int(math.Log10(math.Abs(n))))
			return strconv.FormatFloat(math.Trunc(n*digits)/digits, 'f', -1, 64) + u.name
		}
	}
	return strconv.FormatInt(bytes, 10) + "B"
}
