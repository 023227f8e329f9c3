package wire

import "time"

// Bounds of a command.
const (
	// Keep is how many bytes of each of a command's streams are kept, unless
	// it says otherwise, and MaxKeep the most that it can say.
	Keep    = 1 << 20
	MaxKeep = 64 << 20
	// MaxCommand bounds the JSON of a command, in bytes.
	MaxCommand = 4 << 20
)

// Ways in which output that nobody takes overflows.
const (
	Drop = "drop" // the oldest is forgotten, and told by its offset; the default
	Wait = "wait" // the command's next write waits for the reader
)

// Command is the body of POST /commands and, after its length as 32 bits
// big-endian, the start of that of POST /run.
type Command struct {
	ID       string            `json:"id"`
	Args     []string          `json:"args"`
	Env      map[string]string `json:"env,omitempty"`      // besides the sandbox's
	Workdir  string            `json:"workdir,omitempty"`  // default: the agent's
	User     string            `json:"user,omitempty"`     // name or number, and :group
	Timeout  int64             `json:"timeout,omitempty"`  // in milliseconds; 0: none
	Stdin    bool              `json:"stdin,omitempty"`    // there will be input
	TTY      *Size             `json:"tty,omitempty"`      // a terminal of that size
	Keep     int64             `json:"keep,omitempty"`     // bytes per stream
	Overflow string            `json:"overflow,omitempty"` // Drop or Wait
}

// Size of a terminal, in characters.
type Size struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// Name is the body of POST /commands/ID/signal.
type Name struct {
	Signal string `json:"signal"` // TERM, SIGTERM or 15
}

// States of a command.
const (
	Running = "running"
	Exited  = "exited"
)

// Range is what is kept of a stream: bytes From up to To, counted from the
// first that the command wrote. Output before From is lost.
type Range struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// Status is how a command is.
type Status struct {
	ID      string    `json:"id"`
	Args    []string  `json:"args"`
	User    string    `json:"user,omitempty"`
	Workdir string    `json:"workdir,omitempty"`
	TTY     bool      `json:"tty,omitempty"`
	Pid     int       `json:"pid"` // inside
	State   string    `json:"state"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
	End
	Stdout Range `json:"stdout"`
	Stderr Range `json:"stderr"`
}

// End is how a command ended.
type End struct {
	// Code is the exit status; 128 and the signal's number for one that a
	// signal ended, as a shell has it; 124 for one that ran out of time.
	Code     int    `json:"code"`
	Signal   string `json:"signal,omitempty"` // as in TERM
	TimedOut bool   `json:"timedOut,omitempty"`
}

// FromHeader tells in an answer with output the offset of its first byte.
const FromHeader = "Sallyport-From"
