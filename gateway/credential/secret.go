package credential

import (
	"bytes"
	"fmt"
	"log/slog"
	"runtime"
)

const redacted = "REDACTED"

// Secret is a value that must not be shown. Only Reveal gives it. The zero
// Secret is empty. Two of them are not compared with ==.
//
// Its memory is overwritten with zeros when nothing leads to it any more: no source or
// lease, and no request. A garbage collection finds that out, of which the runtime has one
// at least every two minutes. Reveal's result is a copy, which is not overwritten.
type Secret struct {
	// A pointer, since package fmt prints what unexported fields lead to without
	// asking their methods, but of a pointer only the address.
	*held
}

type held struct{ text []byte }

// NewSecret wraps a copy of a value.
func NewSecret(value string) Secret {
	h := &held{[]byte(value)}
	if value != "" {
		runtime.AddCleanup(h, func(text []byte) { clear(text) }, h.text)
	}
	return Secret{h}
}

// Reveal returns the value. Call it where the value is written into an upstream
// request or compared, and nowhere else.
func (s Secret) Reveal() string {
	if s.held == nil {
		return ""
	}
	value := string(s.text)
	runtime.KeepAlive(s.held) // or it could be overwritten while it is read
	return value
}

// equal compares without a copy, and not in constant time.
func (s Secret) equal(other Secret) bool {
	if s.held == nil || other.held == nil {
		return s.Reveal() == other.Reveal()
	}
	same := s.held == other.held || bytes.Equal(s.text, other.text)
	runtime.KeepAlive(s.held)
	runtime.KeepAlive(other.held)
	return same
}

func (s Secret) String() string               { return redacted }
func (s Secret) GoString() string             { return redacted }
func (s Secret) Format(f fmt.State, _ rune)   { _, _ = f.Write([]byte(redacted)) }
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
func (s Secret) LogValue() slog.Value         { return slog.StringValue(redacted) }
