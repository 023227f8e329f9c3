package cli

import (
	"errors"
	"fmt"
	"os"

	"sallyport/internal/terminal"
)

// usageError is what the caller typed wrong, or why a command whose status is a verdict
// came to none. It exits with 2.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

// Usagef is fmt.Errorf for what the caller typed wrong, or for why a command whose status
// is a verdict came to none. It exits with 2.
func Usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// ExitCode is the status of a command that ran in a sandbox, passed on.
type ExitCode int

func (e ExitCode) Error() string { return fmt.Sprintf("the command exited with status %d", int(e)) }

// ExitStatus prints an error and chooses the process's status: 1 for what went
// wrong, 2 for what was typed wrong or came to no verdict, and a sandboxed
// command's own.
func ExitStatus(err error) int {
	var code ExitCode
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	}
	fmt.Fprintln(os.Stderr, "sallyport:", terminal.Text(err.Error()))
	if errors.As(err, new(usageError)) {
		return 2
	}
	return 1
}
