package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"sallyport/internal/terminal"
)

// signalled is the signal that ended a context.
type signalled struct{ syscall.Signal }

func (s signalled) Error() string { return "ended by a signal: " + s.String() }

// untilSignal is signal.NotifyContext whose cause tells which signal it was.
func untilSignal(parent context.Context, signals ...os.Signal) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	came := make(chan os.Signal, 1)
	signal.Notify(came, signals...)
	go func() {
		select {
		case s := <-came:
			cancel(signalled{s.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	return ctx, func() { signal.Stop(came); cancel(nil) }
}

// brokenOff makes of an error that only says so the status that a shell gives to
// what a signal ended. Whoever sent it knows, so that nothing more is said.
func brokenOff(ctx context.Context, err error) error {
	var by signalled
	if !errors.As(context.Cause(ctx), &by) {
		return err
	}
	root := err
	for next := err; next != nil; next = errors.Unwrap(next) { // none of what is joined
		root = next
	}
	if root != context.Canceled && root != error(by) {
		return err
	}
	return exitCode(128 + int(by.Signal))
}

// usageError is what the caller typed wrong, or why a command whose status is a verdict
// came to none. It exits with 2.
type usageError struct{ err error }

func (u usageError) Error() string { return u.err.Error() }

func (u usageError) Unwrap() error { return u.err }

// exitCode is the status of a command that ran in a sandbox, passed on.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("the command exited with status %d", int(e)) }

// exitStatus prints an error and chooses the process's status: 1 for what went
// wrong, 2 for what was typed wrong or came to no verdict, and a sandboxed
// command's own.
func exitStatus(err error) int {
	var code exitCode
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &usage):
		fmt.Fprintln(os.Stderr, "sallyport:", terminal.Text(err.Error()))
		return 2
	default:
		fmt.Fprintln(os.Stderr, "sallyport:", terminal.Text(err.Error()))
		return 1
	}
}
