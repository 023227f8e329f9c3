package worker_test

import (
	"os"
	"os/exec"
	"runtime"
	gauge "runtime/metrics"
	"testing"
	"time"

	"sallyport/gateway/worker"
)

// TestTune runs in a process of its own, since the collector is the process's.
func TestTune(t *testing.T) {
	if os.Getenv("TEST_TUNE") == "" {
		c := exec.Command(os.Args[0], "-test.run=^TestTune$", "-test.v")
		c.Env = append(os.Environ(), "TEST_TUNE=1", "GOGC=")
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	worker.Tune()
	expect := func(when string, low, high uint64) {
		t.Helper()
		s := []gauge.Sample{{Name: "/gc/gogc:percent"}}
		for range 100 { // the runtime takes its time to say that a collection is over
			runtime.GC()
			if gauge.Read(s); s[0].Value.Uint64() >= low && s[0].Value.Uint64() <= high {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Errorf("%s: the collector's target is %d %%, want %d to %d", when, s[0].Value.Uint64(), low, high)
	}
	expect("small heap", 400, 400)
	grown := make([]byte, 32<<20)
	expect("32 MB more", 150, 250)
	more := make([]byte, 256<<20)
	expect("256 MB more", 100, 110)
	runtime.KeepAlive(grown)
	runtime.KeepAlive(more)
	grown, more = nil, nil
	expect("small heap again", 360, 400)
}
