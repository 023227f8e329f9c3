package size

import (
	"math"
	"testing"
)

func TestSizes(t *testing.T) {
	for _, tt := range []struct {
		bytes       int64
		text, about string
	}{
		{0, "0B", "0B"},
		{1, "1B", "1B"},
		{1023, "1023B", "1023B"},
		{1 << 10, "1KiB", "1KiB"},
		{1000, "1000B", "1000B"},
		{256582, "256582B", "250.5KiB"},
		{1536 << 10, "1536KiB", "1.5MiB"},
		{100<<20 - 1, "104857599B", "99.99MiB"},
		{2245599, "2245599B", "2.141MiB"},
		{10 << 30, "10GiB", "10GiB"},
		{1<<40 - 1, "1099511627775B", "1023GiB"},
		{5 << 40, "5TiB", "5TiB"},
		{math.MaxInt64, "9223372036854775807B", "8388000TiB"},
		{-3 << 20, "-3MiB", "-3MiB"},
	} {
		if text, about := Text(tt.bytes), About(tt.bytes); text != tt.text || about != tt.about {
			t.Errorf("%d: got %s and %s, want %s and %s", tt.bytes, text, about, tt.text, tt.about)
		}
	}
}
