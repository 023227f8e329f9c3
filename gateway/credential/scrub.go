package credential

import (
	"sallyport/gateway/credential/coding"
	"sallyport/gateway/credential/echo"
)

// MinScrub is the length in bytes below which a value is not looked for in
// responses.
const MinScrub = echo.MinLength

// ErrHidden says that a response cannot be searched, or not any more.
var ErrHidden = echo.ErrHidden

// ErrMemory says that other answers take all the memory that there is to decode
// them.
var ErrMemory = coding.ErrMemory

// Scrubber removes secrets from what an upstream sends back.
type Scrubber = echo.Scrubber

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
		values[i] = echo.Value{Text: v.text, Name: v.name, Length: v.length}
	}
	return echo.New(values)
}
