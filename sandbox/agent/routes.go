package agent

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"sallyport/sandbox/agent/wire"
)

// register adds the routes of commands.
func (t *commands) register(mux *http.ServeMux) {
	mux.HandleFunc("POST /run", t.run)
	mux.HandleFunc("POST /commands", t.post)
	mux.HandleFunc("GET /commands", func(w http.ResponseWriter, r *http.Request) { answer(w, http.StatusOK, t.list()) })
	mux.HandleFunc("GET /commands/{id}", t.one(func(w http.ResponseWriter, r *http.Request, c *command) {
		answer(w, http.StatusOK, c.status())
	}))
	mux.HandleFunc("DELETE /commands/{id}", t.one(func(w http.ResponseWriter, r *http.Request, c *command) {
		c.kill()
		select {
		case <-c.over:
		case <-time.After(termGrace): // somebody outside its tree holds its output
		}
		answer(w, http.StatusOK, c.status())
	}))
	mux.HandleFunc("GET /commands/{id}/output", t.one(t.output))
	mux.HandleFunc("POST /commands/{id}/stdin", t.one(t.input))
	mux.HandleFunc("POST /commands/{id}/signal", t.one(func(w http.ResponseWriter, r *http.Request, c *command) {
		var in wire.Name
		if !decode(w, r, &in) {
			return
		}
		s, err := signalNumber(in.Signal)
		if err != nil {
			refuse(w, http.StatusBadRequest, err)
			return
		}
		done(w, c, c.signal(s))
	}))
	mux.HandleFunc("POST /commands/{id}/resize", t.one(func(w http.ResponseWriter, r *http.Request, c *command) {
		var in wire.Size
		if decode(w, r, &in) {
			done(w, c, c.resize(in))
		}
	}))
	mux.HandleFunc("GET /activity", func(w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusOK, wire.Activity{Attached: int(t.attached.Load())})
	})
}

// one is a route of one command.
func (t *commands) one(f func(http.ResponseWriter, *http.Request, *command)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, err := t.get(r.PathValue("id"))
		if err != nil {
			refuse(w, http.StatusNotFound, err)
			return
		}
		f(w, r, c)
	}
}

// done answers with what a command is after something was done to it.
func done(w http.ResponseWriter, c *command, err error) {
	if err != nil {
		refuse(w, http.StatusConflict, err)
		return
	}
	answer(w, http.StatusOK, c.status())
}

func (t *commands) post(w http.ResponseWriter, r *http.Request) {
	var s wire.Command
	if !decode(w, r, &s) {
		return
	}
	c, err := t.start(s)
	if err != nil {
		refuseStart(w, err)
		return
	}
	answer(w, http.StatusCreated, c.status())
}

// refuseStart answers why a command was not started.
func refuseStart(w http.ResponseWriter, err error) {
	var s *startError
	switch {
	case errors.As(err, &s):
		refuse(w, http.StatusUnprocessableEntity, err)
	case errors.Is(err, errTooMany):
		refuse(w, http.StatusTooManyRequests, err)
	default:
		refuse(w, http.StatusBadRequest, err)
	}
}

// attach counts a stream until the returned function is called.
func (t *commands) attach() func() {
	t.attached.Add(1)
	return func() { t.attached.Add(-1) }
}

// stream returns the ring that a request names.
func (c *command) stream(name string) (*ring, error) {
	switch {
	case name == "" || name == "stdout":
		return c.out[0], nil
	case name == "stderr" && len(c.out) > 1:
		return c.out[1], nil
	case name == "stderr":
		return nil, errors.New("a terminal has no stderr of its own")
	}
	return nil, fmt.Errorf("no stream %q: use stdout or stderr", name)
}

// output sends what a stream has from an offset on, with follow also what comes
// until the command has ended. It ends early where the reader was so slow that
// what comes next is lost: the next request tells from where it goes on.
func (t *commands) output(w http.ResponseWriter, r *http.Request, c *command) {
	q := r.URL.Query()
	ring, err := c.stream(q.Get("stream"))
	var from int64
	if v := q.Get("from"); err == nil && v != "" {
		if from, err = strconv.ParseInt(v, 10, 64); err == nil && from < 0 {
			err = errors.New("from is below zero")
		}
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	follow := q.Get("follow") == "1"
	if follow {
		defer t.attach()()
	}
	// All output of a command that has ended is on its way here.
	follow = follow || c.status().State == wire.Exited
	_, end, _ := ring.bounds()
	buf := make([]byte, 32<<10)
	flush := http.NewResponseController(w).Flush
	for first := true; ; {
		more := c.bell.wait()
		settled := c.settled()
		part := buf
		if !follow {
			part = buf[:max(0, min(int64(len(buf)), end-from))]
		}
		n, at := ring.read(part, from)
		if first {
			w.Header().Set("Content-Type", "application/octet-stream")
			w.Header().Set(wire.FromHeader, strconv.FormatInt(at, 10))
			from, first = at, false
		} else if at != from {
			return
		}
		if n > 0 {
			if _, err := w.Write(part[:n]); err != nil {
				return
			}
			from += int64(n)
			ring.take(from)
			continue
		}
		if !follow || settled {
			return
		}
		if flush() != nil {
			return
		}
		select {
		case <-more:
		case <-r.Context().Done():
			return
		}
	}
}

// input feeds the request's body to the command; its end is the input's, unless
// the request asks to keep it open.
func (t *commands) input(w http.ResponseWriter, r *http.Request, c *command) {
	defer t.attach()()
	if err := c.feed(r.Body); err != nil {
		refuse(w, http.StatusConflict, errNoInput)
		return
	}
	if r.URL.Query().Get("open") != "1" {
		c.endInput()
	}
	answer(w, http.StatusOK, c.status())
}
