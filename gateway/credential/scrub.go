package credential

import "sallyport/gateway/credential/echo"

// MinScrub is the length in bytes below which a value is not looked for in
// responses.
const MinScrub = echo.MinLength

// Scrubber removes secrets from what an upstream sends back.
type Scrubber = echo.Scrubber

// NewScrubber returns a Scrubber for the secrets.
func NewScrubber(secrets []Secret) *Scrubber {
	values := make([]string, len(secrets))
	for i, s := range secrets {
		values[i] = s.Reveal()
	}
	return echo.New(values)
}
