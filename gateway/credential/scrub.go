package credential

import (
	"sallyport/gateway/credential/coding"
	"sallyport/gateway/credential/echo"
)

// MinScrub is the length in bytes below which a value is not looked for in
// responses.
const MinScrub = echo.MinLength

// MinSecret is the length in bytes below which what is secret in an injection is not
// injected, unless the configuration says so (allowShort).
const MinSecret = 16

// ErrHidden says that a response cannot be searched, or not any more.
var ErrHidden = echo.ErrHidden

// ErrMemory says that other answers take all the memory that there is to decode
// them.
var ErrMemory = coding.ErrMemory

// Scrubber removes secrets from what an upstream sends back.
type Scrubber = echo.Scrubber

// Found is what an occurrence of a value is reported as.
type Found = echo.Found

// NewScrubber returns a Scrubber for the secrets. Making one takes some 20 µs.
func NewScrubber(secrets []Secret) *Scrubber {
	values := make([]echo.Value, len(secrets))
	for i, s := range secrets {
		values[i].Text = s.Reveal()
	}
	return echo.New(values)
}

// newScrubber returns one that says whose a value is.
func newScrubber(list []*exposed) *Scrubber {
	values := make([]echo.Value, len(list))
	for i, v := range list {
		values[i] = echo.Value{Text: v.text, Length: v.length, Found: Found{Name: v.name, Public: v.public}}
	}
	return echo.New(values)
}
