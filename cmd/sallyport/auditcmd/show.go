package auditcmd

import (
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/audit/tree"
	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/terminal"
)

// show prints entries in the format of --output: ndjson is the events as the log has
// them, all others are records.
func show(g *cli.Globals, cmd *cobra.Command, list iter.Seq2[auditlog.Entry, error]) error {
	w := cmd.OutOrStdout()
	list = cli.Undamaged(cmd, list)
	if g.Output == "ndjson" {
		return lines(w, list)
	}
	events := func(yield func(*audit.Event, error) bool) {
		for e, err := range list {
			if !yield(e.Event, err) {
				return
			}
		}
	}
	p := newPrinter(w, g.Output)
	for r, err := range auditlog.Pairs(events) {
		if err != nil {
			return err
		}
		if err := p.record(r); err != nil {
			return err
		}
	}
	return p.flush()
}

// seals reports whether a record is a checkpoint. There can be one every ten seconds, and
// a person who reads text looks for something else.
func seals(r auditlog.Record) bool { return first(r).Unmapped.Sallyport.State == tree.State }

// first is the event that says what a record is about.
func first(r auditlog.Record) *audit.Event { return cmp.Or(r.Decision, r.Completion) }

// lines prints the events alone. A rune that a terminal may act on is \uXXXX.
func lines(w io.Writer, list iter.Seq2[auditlog.Entry, error]) error {
	to := terminal.JSON(w)
	to.SetEscapeHTML(false)
	for e, err := range list {
		if err != nil {
			return err
		}
		if err := to.Encode(json.RawMessage(e.JSON)); err != nil {
			return err
		}
	}
	return nil
}

// printer prints records.
type printer struct {
	w      io.Writer
	format string
	csv    *csv.Writer
	table  *tabwriter.Writer
	rows   int // of table, that are not printed yet
}

// tableRows are aligned with each other.
const tableRows = 200

func newPrinter(w io.Writer, format string) *printer {
	p := &printer{w: w, format: format, csv: csv.NewWriter(w), table: tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)}
	switch format {
	case "csv":
		_ = p.csv.Write(columns) // flush tells
	case "table":
		fmt.Fprintln(p.table, strings.ToUpper(strings.Join(columns[:tableColumns], "\t")))
	}
	return p
}

func (p *printer) record(r auditlog.Record) error {
	if seals(r) && (p.format == "text" || p.format == "table") {
		return nil
	}
	switch p.format {
	case "json":
		return terminal.JSON(p.w).Encode(r)
	case "csv":
		return p.csv.Write(cells(r))
	case "table":
		row := cells(r)[:tableColumns]
		if e := first(r); row[pathColumn] == "" {
			row[pathColumn] = cell(strings.TrimSuffix(e.Message+": "+e.Detail, ": "))
		}
		for i := range row {
			row[i] = cli.OrDash(row[i])
		}
		return p.row(row)
	}
	_, err := fmt.Fprintln(p.w, auditlog.Line(r))
	return err
}

func (p *printer) row(row []string) error {
	fmt.Fprintln(p.table, strings.Join(row, "\t"))
	if p.rows++; p.rows%tableRows == 0 {
		return p.table.Flush()
	}
	return nil
}

func (p *printer) flush() error {
	switch p.format {
	case "csv":
		p.csv.Flush()
		return p.csv.Error()
	case "table":
		return p.table.Flush()
	}
	return nil
}

const timeForm = "2006-01-02T15:04:05.000Z"

// columns are those of CSV. A table has the first of them.
var columns = []string{
	"time", "sandbox", "verdict", "method", "host", "port", "path", "status", "out", "rule",
	"in", "ms", "credentials", "reason", "state", "message", "detail", "sandbox_id", "operator", "id", "sequence",
}

const (
	tableColumns = 10
	pathColumn   = 6 // in a table also what has happened
)

// cells are a record's, in the order of columns. A spreadsheet takes none for a formula, and
// a terminal none for a command.
func cells(r auditlog.Record) []string {
	e, c := first(r), r.Completion
	x := &e.Unmapped.Sallyport
	row := map[string]string{
		"time": time.UnixMilli(e.Time).UTC().Format(timeForm), "sandbox": x.Sandbox, "verdict": verdict(e),
		"state": x.State, "reason": x.Reason, "message": e.Message, "detail": e.Detail, "sandbox_id": x.SandboxID,
		"id": e.ID(), "sequence": strconv.FormatUint(e.Metadata.Sequence, 10),
	}
	if d := e.Destination; d != nil {
		row["host"], row["port"] = cmp.Or(d.Hostname, d.IP), number(int64(d.Port))
	}
	if q := e.Query; q != nil {
		row["method"], row["host"] = "DNS", q.Hostname
	}
	if q := e.HTTPRequest; q != nil {
		row["method"] = q.Method
		if q.URL != nil {
			row["host"], row["path"] = cmp.Or(q.URL.Hostname, row["host"]), q.URL.Path
		}
	}
	if e.Rule != nil {
		row["rule"] = e.Rule.Name
	}
	if e.Actor != nil {
		row["operator"] = e.Actor.User.Name
	}
	uses := x.Credentials
	if c != nil {
		if uses = c.Unmapped.Sallyport.Credentials; len(uses) == 0 {
			uses = x.Credentials
		}
		if c.HTTPResponse != nil {
			row["status"] = number(int64(c.HTTPResponse.Code))
		}
		if t := c.Traffic; t != nil {
			row["in"], row["out"] = strconv.FormatInt(t.BytesIn, 10), strconv.FormatInt(t.BytesOut, 10)
		}
		row["ms"], row["detail"] = strconv.FormatInt(c.Duration, 10), cmp.Or(c.Detail, e.Detail)
	}
	var names []string
	for _, u := range uses {
		names = append(names, u.Name)
	}
	row["credentials"] = strings.Join(names, " ")
	list := make([]string, len(columns))
	for i, name := range columns {
		list[i] = cell(row[name])
	}
	return list
}

func verdict(e *audit.Event) string {
	switch k := e.Unmapped.Sallyport.Kind; {
	case k == audit.KindLifecycle:
		return "EVENT"
	case k == audit.KindFinding:
		return "FINDING"
	case k == audit.KindDrop:
		return "DROP"
	case k == audit.KindConnection:
		return "OPEN"
	case e.Action == audit.ActionAllowed || k == audit.KindCompletion:
		return "ALLOW"
	}
	return "DENY"
}

func number(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// cell escapes what a terminal acts on. Before what a spreadsheet would take for a formula
// it puts an apostrophe, which spreadsheets do not show
// (https://owasp.org/www-community/attacks/CSV_Injection).
func cell(text string) string {
	text = terminal.Escape(text)
	for _, begin := range []string{"=", "+", "-", "@", "＝", "＋", "－", "＠"} {
		if strings.HasPrefix(text, begin) {
			return "'" + text
		}
	}
	return text
}
