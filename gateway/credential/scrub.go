package credential

import (
	"sallyport/gateway/credential/decode"
	"sallyport/gateway/credential/scrub"
)

// MinScrub is the length in bytes below which a value is not looked for in
// responses.
const MinScrub = scrub.MinLength

// MinSecret is the length in bytes below which what is secret in an injection is not
// injected, unless the configuration says so (allowShort).
const MinSecret = 16

// ErrHidden says that a response cannot be searched, or not any more.
var ErrHidden = scrub.ErrHidden

// ErrMemory says that other answers take all the memory that there is to decode
// them.
var ErrMemory = decode.ErrMemory

// Scrubber removes secrets from what an upstream sends back.
type Scrubber = scrub.Scrubber

// Found is what an occurrence of a value is reported as.
type Found = scrub.Found

// NewScrubber returns a Scrubber for the secrets. Making one takes some 20 µs.
func NewScrubber(secrets []Secret) *Scrubber {
	values := make([]scrub.Value, len(secrets))
	for i, s := range secrets {
		values[i].Text = s.Reveal()
	}
	return scrub.New(values)
}

// newScrubber returns one that says whose a value is.
func newScrubber(list []*exposed) *Scrubber {
	values := make([]scrub.Value, len(list))
	for i, v := range list {
		values[i] = scrub.Value{Text: v.text, Length: v.length, Found: Found{Name: v.name, Public: v.public}}
	}
	return scrub.New(values)
}
