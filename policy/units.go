package policy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"sallyport/internal/size"
)

// Duration is a time as [time.ParseDuration] reads it.
type Duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)
	return err
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// String is as time.Duration's.
func (d Duration) String() string { return time.Duration(d).String() }

// Or is the time, or another one where none is written.
func (d Duration) Or(other time.Duration) time.Duration { return cmp.Or(time.Duration(d), other) }

// Size is a number of bytes, written as 512, 64KiB, 10MiB, 1GiB or 2TiB, or with
// KB, MB, GB and TB for powers of ten.
type Size int64

// units are what a Size may end in, the longest name of an end first.
var units = []struct {
	name string
	size int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}, {"", 1},
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Size) UnmarshalText(text []byte) error {
	for _, u := range units {
		digits, ok := strings.CutSuffix(string(text), u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(digits), 10, 63)
		if err != nil || n > uint64(math.MaxInt64/u.size) {
			return fmt.Errorf("%.64q is not a size: write one as 64KiB, 10MiB or 1GiB", text)
		}
		*s = Size(int64(n) * u.size)
		return nil
	}
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalJSON takes a number too, as Rego writes sizes.
func (s *Size) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) != nil {
		text = string(data)
	}
	return s.UnmarshalText([]byte(text))
}

// String is exact: the largest unit that divides it.
func (s Size) String() string { return size.Text(int64(s)) }
