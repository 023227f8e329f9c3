// Sleeper is PID 1 of sandboxes in tests of sleep: the agent, and below it a
// shell that runs /memory/start once there is one. What the engine executes in a
// container does not survive a checkpoint, what PID 1 has started does.
package main

import (
	"os"
	"os/exec"
	"time"

	"sallyport/sandbox/agent"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "kill" {
		agent.Kill(os.Args[2])
		return
	}
	go func() {
		for ; ; time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat("/memory/start"); err == nil {
				break
			}
		}
		log, _ := os.Create("/tmp/start.log")
		c := exec.Command("/bin/sh", "/memory/start")
		c.Stdout, c.Stderr = log, log
		_ = c.Start() // agent.Run reaps it
	}()
	agent.Run()
}
