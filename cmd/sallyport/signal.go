package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"sallyport/cmd/sallyport/cli"
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
// what a signal ended. The sender knows, so that nothing more is said.
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
	return cli.ExitCode(128 + int(by.Signal))
}
