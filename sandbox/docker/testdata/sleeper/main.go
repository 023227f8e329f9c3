// Sleeper is PID 1 of sandboxes in tests of sleep and forks: the agent, and below
// it a shell that runs /memory/start once there is one. What the engine executes in
// a container does not survive a checkpoint, what PID 1 has started does.
package main

import (
	"os"
	"os/exec"
	"time"

	"sallyport/sandbox/agent"
)

func main() {
	go func() {
		for ; ; time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat("/memory/start"); err == nil {
				break
			}
		}
		_ = exec.Command("/bin/sh", "/memory/start").Start() // the agent reaps it
	}()
	agent.Run("")
}
