package worker

import (
	"os"
	"runtime"
	"runtime/debug"
	gauge "runtime/metrics"
)

// The garbage collector's target (debug.SetGCPercent). A request leaves some 12
// KB to collect, and little of it lives on: with the default of 100 collecting
// takes an eighth of the CPU time, with 400 a fiftieth. The price is up to five
// times the live heap, of which a policy of 1,000 rules makes most; ten thousand
// idle connections would make it five times theirs, and so the percentage falls
// as the heap grows: garbage may take heapSlack, or as much again as what lives.
const (
	gcPercent    = 400
	gcPercentLow = 100
	heapSlack    = 64 << 20 // bytes
)

// Tune sets Go's runtime up for a process that runs a Gateway, unless the
// environment has GOGC. It is called once.
func Tune() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
		retune(&tuner{percent: gcPercent})
	}
}

// tuner follows the heap. It is garbage again at each collection, after which
// the runtime hands it over.
type tuner struct {
	percent int // set last
	live    [1]gauge.Sample
}

func retune(t *tuner) {
	t.live[0].Name = "/gc/heap/live:bytes" // that the last collection left
	gauge.Read(t.live[:])
	if want := percent(t.live[0].Value.Uint64()); want*10 < t.percent*9 || want*9 > t.percent*10 {
		debug.SetGCPercent(want) // stops the world for a moment, and so not each time
		t.percent = want
	}
	runtime.SetFinalizer(t, retune)
}

// percent is the collector's target for so many bytes that live.
func percent(live uint64) int {
	return int(min(gcPercent, max(gcPercentLow, heapSlack*100/max(live, 1))))
}
