package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sallyport/internal/size"
	"sallyport/policy"
	"sallyport/sandbox"
)

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
	return usageError{fmt.Errorf("%w: see `%s --help`", err, c.CommandPath())}
}

// sizeFlag is a flag of so many bytes.
type sizeFlag struct{ bytes *int64 }

func (s sizeFlag) Type() string { return "size" }

func (s sizeFlag) String() string {
	if s.bytes == nil || *s.bytes == 0 {
		return ""
	}
	return size.Text(*s.bytes)
}

func (s sizeFlag) Set(text string) error { return (*policy.Size)(s.bytes).UnmarshalText([]byte(text)) }

// lastsVar is a flag of a time, whose usage says what none comes to.
func lastsVar(f *pflag.FlagSet, d *sandbox.Duration, name, usage string) {
	f.Var(d, name, usage)
	f.Lookup(name).DefValue = "" // not 0s
}
