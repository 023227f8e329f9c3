package env

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
)

const (
	startTime   = 2 * time.Minute // until the daemon answers
	commandTime = 6 * time.Minute // apt in gVisor takes one on a quiet machine
	keptLog     = 8192            // bytes of the daemon's log in a failure
)

// Daemon is `sallyport up` with one configuration. It is not running until Start.
type Daemon struct {
	Programs *Programs
	Dir      string   // its configuration and all that it writes
	By       []string // the command that runs `sallyport up`, empty: none

	process *exec.Cmd // the one started last
	log     *os.File
}

// NewDaemon has its configuration in dir/sallyport.yaml.
func NewDaemon(p *Programs, dir string) *Daemon { return &Daemon{Programs: p, Dir: dir} }

// Config is the path of the configuration.
func (d *Daemon) Config() string { return filepath.Join(d.Dir, "sallyport.yaml") }

// Write makes a file in Dir that only its owner reads.
func (d *Daemon) Write(name, text string) error {
	return os.WriteFile(filepath.Join(d.Dir, name), []byte(text), 0o600)
}

// Start runs the daemon and waits until it answers.
func (d *Daemon) Start() error {
	var err error
	if d.log == nil {
		if d.log, err = os.Create(d.logPath()); err != nil {
			return err
		}
	}
	words := append(slices.Clone(d.By), filepath.Join(d.Programs.Dir, "sallyport"), "up")
	d.process = exec.Command(words[0], words[1:]...)
	d.process.Env = d.env()
	d.process.Stdout, d.process.Stderr = d.log, d.log
	if err := d.process.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func(c *exec.Cmd) { ended <- c.Wait() }(d.process)
	for deadline := time.Now().Add(startTime); time.Now().Before(deadline); {
		if res, err := d.Run("", "status"); err == nil && res.Code == 0 {
			return nil
		}
		select {
		case err := <-ended:
			return fmt.Errorf("it ended: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
	return errors.New("it does not answer")
}

// PID is the process started last, or 0 before the first Start.
func (d *Daemon) PID() int {
	if d.process == nil || d.process.Process == nil {
		return 0
	}
	return d.process.Process.Pid
}

// Signal reaches the process started last.
func (d *Daemon) Signal(s os.Signal) error { return d.process.Process.Signal(s) }

// Down stops the daemon and everything that it started. A daemon that is not
// running is started first, since it knows what is left. It is an error if a
// connection of a sandbox was not in the audit log: nothing that a test has a sandbox
// do is a reason for that.
func (d *Daemon) Down() error {
	if res, err := d.Run("", "status"); err != nil || res.Code != 0 {
		if err := d.Start(); err != nil {
			return fmt.Errorf("starting the daemon to clean up: %w", err)
		}
	}
	defer d.log.Close()
	res, err := d.Run("", "down")
	if err == nil && res.Code != 0 {
		err = fmt.Errorf("down: %s", res)
	}
	return errors.Join(err, d.unrecorded())
}

// unrecorded is an error if the audit log does not account for all connections.
func (d *Daemon) unrecorded() error {
	for e, err := range auditlog.Read(context.Background(), filepath.Join(d.Dir, "data/audit"), auditlog.Query{Kind: audit.KindFinding}) {
		if err != nil {
			continue // some tests damage it
		}
		if state := e.Unmapped.Sallyport.State; state == audit.FindingUnrecorded || state == audit.FindingUnaccounted {
			return fmt.Errorf("%s: %s", e.Message, e.Unmapped.Sallyport.Reason)
		}
	}
	return nil
}

// Log is the end of what the daemon has logged.
func (d *Daemon) Log() string {
	data, _ := os.ReadFile(d.logPath())
	if len(data) > keptLog {
		data = data[len(data)-keptLog:]
	}
	return string(data)
}

func (d *Daemon) logPath() string { return filepath.Join(d.Dir, "daemon.log") }

func (d *Daemon) env() []string { return append(os.Environ(), "SALLYPORT_CONFIG="+d.Config()) }

// Result is what a command printed and how it ended.
type Result struct {
	Stdout, Stderr string
	Code           int
}

func (r Result) String() string {
	return fmt.Sprintf("exit %d, stdout %q, stderr %q", r.Code, r.Stdout, r.Stderr)
}

// Command is the command line with this daemon's configuration, not started.
func (d *Daemon) Command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, filepath.Join(d.Programs.Dir, "sallyport"), args...)
	c.Env = d.env()
	return c
}

// Run runs the command line. Its error says that it could not be run at all.
func (d *Daemon) Run(stdin string, args ...string) (Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	c := d.Command(ctx, args...)
	var out, errs bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(stdin), &out, &errs
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return Result{}, fmt.Errorf("running sallyport %q: %w", args, err)
	}
	return Result{out.String(), errs.String(), c.ProcessState.ExitCode()}, nil
}
