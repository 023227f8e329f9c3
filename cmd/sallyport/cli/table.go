package cli

import (
	"cmp"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Table aligns rows of tab-separated cells.
func Table(w io.Writer, head string, rows ...string) {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, head)
	for _, r := range rows {
		fmt.Fprintln(t, r)
	}
	_ = t.Flush()
}

// Rows is the row of each of a list.
func Rows[T any](list []T, row func(T) string) (lines []string) {
	for _, v := range list {
		lines = append(lines, row(v))
	}
	return lines
}

// Many counts things in words.
func Many[N int | int64 | uint64 | float64](n N, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", more)
}

// Day is a time to the minute, or none for no time.
func Day(t time.Time, none string) string {
	if t.IsZero() {
		return none
	}
	return t.Local().Format("2006-01-02 15:04")
}

// OrDash is a cell of a table, which is never empty.
func OrDash(s string) string { return cmp.Or(s, "-") }
