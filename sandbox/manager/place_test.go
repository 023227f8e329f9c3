package manager

import (
	"errors"
	"os"
	"testing"

	"sallyport/sandbox"
)

// TestSnapshotFails: of a snapshot that could not be made, at whatever step, nothing is
// left.
func TestSnapshotFails(t *testing.T) {
	for _, fault := range []string{"pause", "checkpoint", "checkpointed", "disk", "record snapshot"} {
		t.Run(fault, func(t *testing.T) {
			b := newBed(t)
			b.live(t, "a")
			b.h.fault = fault
			if _, err := b.Snapshot(t.Context(), "a", sandbox.SnapshotSpec{Name: "s", Memory: true}); !errors.Is(err, errFault) {
				t.Fatalf("got %v", err)
			}
			left, _ := os.ReadDir(b.snapshotsDir("a"))
			ram, _ := os.ReadDir(b.ram)
			if len(left)+len(ram) > 0 {
				t.Errorf("left: %v %v", left, ram)
			}
			b.h.fault = ""
			b.keeps(t, "a", sandbox.SnapshotSpec{Name: "s", Memory: true})
		})
	}
}
