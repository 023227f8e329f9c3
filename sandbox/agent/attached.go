package agent

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"sallyport/sandbox/agent/wire"
)

// aliveEvery is how often the host's end of an attached command is tried.
const aliveEvery = 2 * time.Second

// linger is for how long a command's input is read on after its end.
const linger = 2 * time.Second

// frames are buffers that one frame fits in.
var frames = sync.Pool{New: func() any { b := make([]byte, wire.MaxFrame); return &b }}

// run starts a command and carries its streams as frames, both ways at once.
// When the connection ends before the command, the command goes on as one in
// the background: who wants it ended asks for that.
func (t *commands) run(w http.ResponseWriter, r *http.Request) {
	defer t.attach()()
	body := bufio.NewReader(r.Body)
	s, err := readCommand(body)
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	control := http.NewResponseController(w)
	if s.Stdin || s.TTY != nil {
		// Input lasts as long as the command does. Its end is not
		// waited for, so that this connection is not used again.
		if err := control.EnableFullDuplex(); err != nil {
			refuse(w, http.StatusInternalServerError, err)
			return
		}
		w.Header().Set("Connection", "close")
	}
	c, err := t.start(s)
	if err != nil {
		refuseStart(w, err)
		return
	}
	if s.Stdin || s.TTY != nil {
		fed := make(chan struct{})
		go func() {
			defer close(fed)
			c.steer(body)
		}()
		defer func() {
			// Input is still read until the host, which has all, goes: a
			// connection that is closed with something unread takes with it what
			// was sent last (RFC 9112, section 9.6).
			select {
			case <-fed:
			case <-time.After(linger):
			}
			_ = control.SetReadDeadline(time.Unix(1, 0))
			<-fed
		}()
	}
	// Unless all was said, nobody takes what else comes.
	defer func() {
		for _, r := range c.out {
			r.detach()
		}
	}()
	w.Header().Set("Content-Type", "application/octet-stream")
	if c.send(w, r, control.Flush) != nil {
		return
	}
	c.mu.Lock()
	end, err := json.Marshal(c.end)
	c.mu.Unlock()
	if err == nil && wire.NewWriter(w).Write(wire.Exit, end) == nil && (s.Stdin || s.TTY != nil) {
		_ = control.Flush() // what waits for input's end below; others send it with the answer's own end
	}
}

// send carries the command's output until it has ended.
func (c *command) send(w io.Writer, r *http.Request, flush func() error) error {
	out := wire.NewWriter(w)
	buf := frames.Get().(*[]byte)
	defer frames.Put(buf)
	offsets := make([]int64, len(c.out))
	tick := time.NewTicker(aliveEvery)
	defer tick.Stop()
	unsent := false
	for {
		more := c.bell.wait()
		settled, moved := c.settled(), false
		for i, ring := range c.out {
			n, at := ring.read(*buf, offsets[i])
			if n == 0 {
				continue
			}
			moved, unsent = true, true
			if err := out.Write([]wire.Kind{wire.Stdout, wire.Stderr}[i], (*buf)[:n]); err != nil {
				return err
			}
			offsets[i] = at + int64(n)
			ring.take(offsets[i])
		}
		switch {
		case moved:
			continue
		case settled:
			return nil
		}
		if unsent {
			if err := flush(); err != nil {
				return err
			}
			unsent = false
		}
		select {
		case <-more:
		case <-r.Context().Done():
			return r.Context().Err()
		case <-tick.C:
			if err := out.Write(wire.Alive, nil); err != nil {
				return err
			}
			if err := flush(); err != nil {
				return err
			}
		}
	}
}

// steer does what frames to the command say until they end.
func (c *command) steer(from io.Reader) {
	buf := frames.Get().(*[]byte)
	defer frames.Put(buf)
	for {
		k, p, err := wire.Read(from, *buf)
		if err != nil {
			return
		}
		switch k {
		case wire.Stdin:
			if len(p) == 0 {
				c.endInput()
			} else {
				c.write(p)
			}
		case wire.Resize:
			var s wire.Size
			if json.Unmarshal(p, &s) == nil {
				_ = c.resize(s) // it may have ended
			}
		case wire.Signal:
			if s, err := signalNumber(string(p)); err == nil {
				_ = c.signal(s)
			}
		}
	}
}

// write gives the command input; what it does not want is dropped.
func (c *command) write(p []byte) {
	c.mu.Lock()
	f := c.stdin
	c.mu.Unlock()
	if f != nil {
		_, _ = f.Write(p)
	}
}

// readCommand reads the command at the start of a request.
func readCommand(r io.Reader) (s wire.Command, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return s, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > wire.MaxCommand {
		return s, fmt.Errorf("a command of %d bytes, more than %d", n, wire.MaxCommand)
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(r, data); err != nil {
		return s, err
	}
	return s, json.Unmarshal(data, &s)
}
