package sandbox

import (
	"fmt"
	"time"
)

// Duration is a time in a spec, as [time.ParseDuration] reads it: "90s", "15m",
// "24h". 0 is none.
type Duration time.Duration

func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is no time: write one as 90s, 15m or 24h", text)
	}
	*d = Duration(v)
	return nil
}

// Set and Type make it a flag's value.
func (d *Duration) Set(s string) error { return d.UnmarshalText([]byte(s)) }

// Type names it in a usage text.
func (d *Duration) Type() string { return "duration" }
