// Package model is a sandbox that is simple enough to be seen to be right: a state,
// two files, a number in memory, and snapshots of these. Tests have many clients
// do things at random to real ones and compare what each client was told, and what
// was recorded, with what this one would say.
//
// The comparison is one of linearizability (Herlihy and Wing, 1990): there must be
// an order of all calls, none before what ended before it began, in which this
// sandbox gives every answer that was given and changes its state exactly where
// the audit log has an event, with nothing left over on either side. Porcupine finds such an order or says that there
// is none. Deriving the order from the log alone would not do: most calls leave no
// event, and then what they were told could not be judged.
package model

import (
	"fmt"
	"time"
)

// Verb is what a client does.
type Verb string

const (
	Create    Verb = "create"
	Start     Verb = "start"
	Stop      Verb = "stop"
	Pause     Verb = "pause"
	Hibernate Verb = "hibernate"
	Wake      Verb = "wake"
	Remove    Verb = "remove"
	Get       Verb = "get"
	Set       Verb = "set"      // Arg, a label, and Pids
	Snapshot  Verb = "snapshot" // named Arg, with memory if Memory
	Restore   Verb = "restore"  // to Arg
	Fork      Verb = "fork"     // of the snapshot Arg, or of the sandbox

	// Uses run a sandbox that does not run, and then have one effect.
	WriteFile  Verb = "write file" // Arg, to the container's own file
	ReadFile   Verb = "read file"
	WriteStore Verb = "write store" // Arg, to a file in /memory
	ReadStore  Verb = "read store"
	Bump       Verb = "bump" // a number that a process has in its memory
)

func (v Verb) use() bool {
	switch v {
	case WriteFile, ReadFile, WriteStore, ReadStore, Bump:
		return true
	}
	return false
}

// Op is one call.
type Op struct {
	Verb   Verb
	Name   string
	Arg    string
	Memory bool
	Pids   int64
}

func (o Op) String() string {
	s := fmt.Sprintf("%s %s %s", o.Verb, o.Name, o.Arg)
	if o.Memory {
		s += " with memory"
	}
	return s
}

// Outcome is how a call ended.
type Outcome int

const (
	Done Outcome = iota
	NoSandbox
	NoSnapshot
	NoState // it cannot be done to a sandbox in its state
	NoFile
	Unknown // it failed half-way: it may have had its effect, or have it later
)

// Result is what a client was told.
type Result struct {
	Outcome Outcome
	State   string // of the sandbox, after a verb that is no use
	Label   string
	Pids    int64
	Next    int64 // Pids of the next session, 0: the same
	Text    string
	Count   int64
	Created *bool     // nil: it is not told
	Child   *Contents // of a fork
	Err     error     // of an Unknown
}

// Contents are what a sandbox has.
type Contents struct {
	File, Store string
	Count       int64
	Live        bool // it has processes
}

// Call is an Op with its Result, and when the client began and ended it.
type Call struct {
	Client       int
	Op           Op
	Result       Result
	Began, Ended time.Duration // since the first began
}

func (c Call) String() string {
	s := fmt.Sprintf("%8.3f-%8.3f s, client %d: %v: ", c.Began.Seconds(), c.Ended.Seconds(), c.Client, c.Op)
	r := c.Result
	switch {
	case r.Err != nil:
		return s + r.Err.Error()
	case r.Outcome != Done:
		return s + [...]string{"", "no such sandbox", "no such snapshot", "not in its state", "no such file", "unknown"}[r.Outcome]
	case r.Child != nil:
		return s + fmt.Sprintf("%+v", *r.Child)
	case c.Op.Verb.use():
		return s + fmt.Sprintf("%q %d", r.Text, r.Count)
	}
	return s + fmt.Sprintf("%s, label %q, pids %d, next %d", r.State, r.Label, r.Pids, r.Next)
}
