package policy

import (
	"cmp"
	"time"
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
