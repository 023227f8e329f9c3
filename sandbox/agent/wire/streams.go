package wire

import (
	"encoding/json"
	"errors"
	"io"
)

// Streams are the live ends of an attached command, at the side that wants it run.
// Stdin, Stdout, Stderr, Sizes and Signals may each be nil.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Sizes          <-chan Size   // that the terminal gets
	Signals        <-chan string // to the process group, as in TERM
}

// Send writes what goes to the command as frames until over is closed, or until
// everything has been sent. Only io.EOF from Stdin ends the command's input. Any other
// error is passed to broken, once, and no end of input is sent: part of an input must
// not pass for all of it. A failed write is not reported: the end of the connection shows
// in what comes the other way.
//
// A Stdin that blocks is read until its next return, beyond the command's end.
func (s Streams) Send(to *Writer, over <-chan struct{}, broken func(error)) {
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		if s.Stdin == nil {
			return
		}
		in := &input{Reader: s.Stdin}
		if _, err := io.Copy(to.Stream(Stdin), in); err == nil {
			_ = to.Write(Stdin, nil)
		}
		if in.err != nil {
			broken(in.err)
		}
	}()
	for sizes, signals := s.Sizes, s.Signals; sizes != nil || signals != nil; {
		select {
		case name, ok := <-signals:
			if !ok {
				signals = nil
				continue
			}
			_ = to.Write(Signal, []byte(name))
		case size, ok := <-sizes:
			if !ok {
				sizes = nil
				continue
			}
			if data, err := json.Marshal(size); err == nil {
				_ = to.Write(Resize, data)
			}
		case <-over:
			return
		}
	}
	select {
	case <-fed:
	case <-over:
	}
}

// input notes a failed read, which io.Copy does not tell from a failed write.
type input struct {
	io.Reader
	err error
}

func (i *input) Read(p []byte) (int, error) {
	n, err := i.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		i.err = err
	}
	return n, err
}

// Take writes one frame of the command's output to its stream.
func (s Streams) Take(k Kind, p []byte) (err error) {
	switch {
	case k == Stdout && s.Stdout != nil:
		_, err = s.Stdout.Write(p)
	case k == Stderr && s.Stderr != nil:
		_, err = s.Stderr.Write(p)
	}
	return err
}

// Frames reads frames and passes each to take, until the frame Exit, whose payload it
// returns, or an error of either side.
func Frames(from io.Reader, take func(Kind, []byte) error) (exit []byte, err error) {
	buf := make([]byte, MaxFrame)
	for {
		k, p, err := Read(from, buf)
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, &ReadError{err}
		}
		if k == Exit {
			return p, nil
		}
		if err := take(k, p); err != nil {
			return nil, err
		}
	}
}

// ReadError is why no more frames could be read.
type ReadError struct{ err error }

func (e *ReadError) Error() string { return e.err.Error() }
func (e *ReadError) Unwrap() error { return e.err }
