package channel

import "time"

func init() {
	// Dozens of agents that never answer would take minutes of it.
	killTimeout = 500 * time.Millisecond
}
