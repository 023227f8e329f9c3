// Package finding has the faults that are found in a policy: their kinds, and the places
// and changes that mend them.
package finding

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// Position is a place in a file. Line and Column count from 1; 0 is unknown.
type Position struct {
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
}

func (p Position) String() string {
	switch {
	case p.Line == 0:
		return p.File
	case p.Column == 0:
		return fmt.Sprintf("%s:%d", p.File, p.Line)
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Severity of a Finding. The zero Severity is an error.
type Severity string

const (
	Error   Severity = ""        // the configuration cannot be used
	Warning Severity = "warning" // it can, but does not do what it seems to
	Note    Severity = "note"    // it does; somebody may want to know
)

// String is the severity's name, error included.
func (s Severity) String() string { return cmp.Or(string(s), "error") }

// MarshalText implements encoding.TextMarshaler.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Severity) UnmarshalText(text []byte) error {
	switch *s = Severity(text); *s {
	case Error, Warning, Note:
		return nil
	case "error":
		*s = Error
		return nil
	}
	return fmt.Errorf("%q is not error, warning or note", text)
}

// Finding is one thing that is wrong with a configuration, and what to write
// instead. It is an error whatever its Severity.
type Finding struct {
	Kind     Kind     `json:"id,omitempty"`
	Severity Severity `json:"severity"`
	Position Position `json:"position"`
	Path     string   `json:"path,omitempty"` // egress[0].ports[1]
	Message  string   `json:"message"`
	Fix      string   `json:"fix,omitempty"`
}

// Error gives the finding on one line, as compilers do.
func (f Finding) Error() string {
	var b strings.Builder
	if at := f.Position.String(); at != "" {
		b.WriteString(at + ": ")
	}
	if f.Severity != Error {
		b.WriteString(f.Severity.String() + ": ")
	}
	if f.Path != "" {
		b.WriteString(f.Path + ": ")
	}
	b.WriteString(f.Message)
	if f.Fix != "" {
		b.WriteString("; " + f.Fix)
	}
	if f.Kind != "" {
		b.WriteString(" (" + string(f.Kind) + ")")
	}
	return b.String()
}

// Findings lists the findings that err is made of; what is no Finding becomes
// one without a position.
func Findings(err error) []Finding {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []Finding
		for _, e := range joined.Unwrap() {
			all = append(all, Findings(e)...)
		}
		return all
	}
	if f, ok := errors.AsType[Finding](err); ok {
		return []Finding{f}
	}
	return []Finding{{Message: err.Error()}}
}

// JoinErrors makes one error of those findings that are errors.
func JoinErrors(findings []Finding) error {
	var errs []error
	for _, f := range findings {
		if f.Severity == Error {
			errs = append(errs, f)
		}
	}
	return errors.Join(errs...)
}

// Nearest returns the candidate that s was probably meant to be, or "".
func Nearest(s string, candidates []string) string {
	best, least := "", len(s)/3+2
	for _, c := range candidates {
		if strings.EqualFold(s, c) {
			return c
		}
		if d := EditDistance(s, c, least); d < least {
			best, least = c, d
		}
	}
	return best
}

// EditDistance is the Levenshtein distance of a and b in bytes, or limit if that is less.
func EditDistance(a, b string, limit int) int {
	if len(a) > 128 || len(b) > 128 || max(len(a)-len(b), len(b)-len(a)) >= limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return min(row[len(b)], limit)
}
