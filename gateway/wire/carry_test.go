package wire_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"sync"
	"testing"

	"sallyport/gateway/wire"
)

// faulty is a connection whose goroutines may panic.
type faulty struct {
	wire.Conn
	faults int
}

func (c *faulty) Go(work *sync.WaitGroup, f func()) {
	work.Go(func() {
		defer func() {
			if recover() != nil {
				c.faults++
			}
		}()
		f()
	})
}

// free is a grant without an end.
type free struct{ wire.Grant }

func (free) Hold() func()             { return func() {} }
func (free) Context() context.Context { return context.Background() }
func (free) Sent(int) error           { return nil }
func (free) Received(int) error       { return nil }

// TestCarryPanic: a fault in what is carried to the server ends the session.
func TestCarryPanic(t *testing.T) {
	near, sandbox := net.Pipe()
	defer sandbox.Close()
	far, server := net.Pipe()
	defer server.Close()
	c := &faulty{}
	_, _, err := wire.Carry(c, free{}, near, tls.Client(far, &tls.Config{InsecureSkipVerify: true}), func(io.Writer, io.Reader) error {
		panic("a fault")
	}, func(_ io.Writer, server io.Reader) (bool, error) {
		_, err := server.Read(make([]byte, 1))
		return true, err
	})
	if err == nil || c.faults != 1 {
		t.Errorf("%d faults, %v", c.faults, err)
	}
}
