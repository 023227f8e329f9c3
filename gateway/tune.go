package gateway

import (
	"os"
	"runtime/debug"
)

// gcPercent is the garbage collector's target (debug.SetGCPercent). A request
// leaves some 12 KB to collect, and little of it lives on: with the default of
// 100 collecting takes an eighth of the CPU time, with this a fiftieth. The price
// is up to five times the live heap, of which a policy of 1,000 rules makes most.
const gcPercent = 400

// Tune sets Go's runtime up for a process that runs a Gateway, unless the
// environment has GOGC.
func Tune() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}
