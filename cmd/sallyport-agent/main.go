// Command sallyport-agent is PID 1 of a sandbox: see package agent.
//
//	sallyport-agent            be PID 1
//	sallyport-agent user USER  be PID 1, with commands as USER by default
package main

import (
	"fmt"
	"os"

	"sallyport/sandbox/agent"
)

func main() {
	switch {
	case len(os.Args) == 1:
		agent.Run("")
	case len(os.Args) == 3 && os.Args[1] == "user":
		agent.Run(os.Args[2])
	default:
		fmt.Fprintln(os.Stderr, "usage: sallyport-agent [user USER]")
		os.Exit(2)
	}
}
