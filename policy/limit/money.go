package limit

import (
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// Money is an amount in billionths of whatever currency prices are written in. As
// text it is a decimal number: 5, 0.15, 1250.00.
type Money int64

// unit is one of the currency.
const unit = 1_000_000_000

// UnmarshalText implements encoding.TextUnmarshaler. There is no Money below zero,
// nor with more than nine digits behind the point.
func (m *Money) UnmarshalText(text []byte) error {
	whole, fraction, pointed := strings.Cut(string(text), ".")
	n, err := strconv.ParseUint(whole, 10, 63)
	if err != nil || n >= math.MaxInt64/unit || pointed && (fraction == "" || len(fraction) > 9) {
		return fmt.Errorf("%.64q is not an amount: write one as 5.00", text)
	}
	var part uint64
	if pointed {
		if part, err = strconv.ParseUint(fraction+strings.Repeat("0", 9-len(fraction)), 10, 63); err != nil {
			return fmt.Errorf("%.64q is not an amount: write one as 5.00", text)
		}
	}
	*m = Money(n*unit + part)
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (m Money) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalJSON takes a number too, as Rego writes amounts.
func (m *Money) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) != nil {
		text = string(data)
	}
	return m.UnmarshalText([]byte(text))
}

// String is exact, with two digits behind the point at least.
func (m Money) String() string {
	sign, n := "", uint64(m)
	if m < 0 {
		sign, n = "-", uint64(-m)
	}
	fraction := fmt.Sprintf("%09d", n%unit)
	for len(fraction) > 2 && fraction[len(fraction)-1] == '0' {
		fraction = fraction[:len(fraction)-1]
	}
	return sign + strconv.FormatUint(n/unit, 10) + "." + fraction
}

// For is what n of something cost of which a million cost m, rounded up; as much
// as there can be where that is more.
func (m Money) For(n int64) Money {
	if m <= 0 || n <= 0 {
		return 0
	}
	const million = 1_000_000
	high, low := bits.Mul64(uint64(m), uint64(n))
	if high >= million {
		return math.MaxInt64
	}
	cost, rest := bits.Div64(high, low, million)
	if rest > 0 {
		cost++
	}
	if cost > math.MaxInt64 {
		return math.MaxInt64
	}
	return Money(cost)
}

// Plus is the sum of two amounts that are not below zero, or as much as there can
// be.
func (m Money) Plus(o Money) Money { return Money(plus(int64(m), int64(o))) }

func plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
