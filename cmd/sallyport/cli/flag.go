package cli

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sallyport/internal/config"
)

// Pairs reads the values NAME=VALUE of the flag what.
func Pairs(flags []string, what string) (map[string]string, error) {
	if len(flags) == 0 {
		return nil, nil
	}
	m := map[string]string{}
	for _, f := range flags {
		k, v, ok := strings.Cut(f, "=")
		if !ok || k == "" {
			return nil, Usagef("--%s %q: write NAME=VALUE", what, f)
		}
		m[k] = v
	}
	return m, nil
}

// forms are how a flag of a type is written.
var forms = map[string]string{
	"bool":     "true or false",
	"int":      "a whole number",
	"int64":    "a whole number",
	"float64":  "a number, as 2 or 1.5",
	"duration": "a time, as 90s, 15m or 24h",
	"size":     "a size, as 64KiB, 10MiB or 1GiB",
}

// flagError is what was wrong with a flag, in words rather than a parser's.
func flagError(c *cobra.Command, err error) error {
	var bad *pflag.InvalidValueError
	if errors.As(err, &bad) {
		if form, known := forms[bad.GetFlag().Value.Type()]; known {
			err = fmt.Errorf("--%s %q: write %s", bad.GetFlag().Name, bad.GetValue(), form)
		}
	}
	return Usagef("%w: see `%s --help`", err, c.CommandPath())
}

// TimeFlag reads the time that a flag has, or how long ago it was; zero for no text.
func TimeFlag(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	t, ok := Time(text)
	if !ok {
		return t, Usagef("--%s %q: write 24h, or a time as 2026-12-01T00:00:00Z", flag, text)
	}
	return t, nil
}

// Time reads a time, or how long ago it was, and says whether the text is one.
func Time(text string) (time.Time, bool) {
	var ago config.Age
	if err := ago.UnmarshalText([]byte(text)); err == nil && ago > 0 {
		return time.Now().Add(-time.Duration(ago)), true
	}
	t, err := time.Parse(time.RFC3339, text)
	return t, err == nil
}
