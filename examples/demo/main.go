// Demo plays Sallyport's main job on the terminal, on real parts: a daemon with
// a private engine, a gVisor sandbox, and an upstream in a network namespace of
// its own. Each step prints the command that a user would type and what its
// outcome proves; an outcome that proves nothing ends the demo with status 1.
//
//	demo -bin bin up     play, and leave the daemon running
//	demo -bin bin down   stop everything
//
// Everything lies under -dir; nothing leaves this machine.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	bin := flag.String("bin", "bin", "`folder` of sallyport, sallyport-agent and testhost")
	dir := flag.String("dir", filepath.Join(stateHome(), "sallyport-demo"), "`folder` of the demo's state")
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s, err := newStage(*bin, *dir)
	if err == nil {
		switch flag.Arg(0) {
		case "up":
			err = up(ctx, s)
		case "down":
			err = s.down(ctx)
		default:
			flag.Usage()
			os.Exit(2)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func stateHome() string {
	if d := os.Getenv("XDG_STATE_HOME"); d != "" {
		return d
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "/var/tmp"
	}
	return filepath.Join(home, ".local", "state")
}

func up(ctx context.Context, s *stage) error {
	fmt.Println("Sallyport: the guarded way out. Nothing below leaves this machine.")
	if err := s.prepare(ctx); err != nil {
		return err
	}
	for i, step := range script {
		fmt.Printf("\n%d  %s\n", i+1, step.title)
		if err := step.play(ctx, s); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	fmt.Printf(`
Everything held. The daemon goes on running. Type next:

  export SALLYPORT_CONFIG=%s PATH=%s:$PATH
  sallyport run demo -- python3 -c 'import urllib.request as u; print(u.urlopen("https://api.example.test/").read())'
  sallyport audit tail --follow
  sallyport policy explain --sandbox demo GET https://api.example.test/v1/models
  make down        # stops it all
`, s.config, s.bin)
	return nil
}
