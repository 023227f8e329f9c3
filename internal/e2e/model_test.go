package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/model"
	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

const modelPids = 300

// bump adds one to the number that a session has in its memory, and says whether the
// process that began with it is still there.
const bump = `exec 9>/dev/shm/lock; flock 9
read n pid </dev/shm/n 2>/dev/null || { n=0; sleep 1000000 </dev/null >/dev/null 2>&1 9>&- & pid=$!; }
kill -0 $pid || exit 9
n=$((n+1)); echo $n $pid >/dev/shm/n; echo $n`

// player does to a daemon what clients want.
type player struct {
	c   *client.Client
	mu  sync.Mutex
	odd map[string]int // what uses failed with, which other clients stopped
}

func (p *player) do(ctx context.Context, op model.Op) (r model.Result) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var i sandbox.Info
	var err error
	switch op.Verb {
	case model.Create:
		i, err = p.c.Create(ctx, op.Name, sandbox.Spec{})
	case model.Start:
		i, err = p.c.Start(ctx, op.Name)
	case model.Stop:
		i, err = p.c.Stop(ctx, op.Name)
	case model.Pause:
		i, err = p.c.Pause(ctx, op.Name)
	case model.Hibernate:
		i, err = p.c.Hibernate(ctx, op.Name)
	case model.Wake:
		i, err = p.c.Wake(ctx, op.Name)
	case model.Get:
		i, err = p.c.Sandbox(ctx, op.Name)
	case model.Remove:
		err = p.c.Remove(ctx, op.Name)
	case model.Set:
		i, err = p.c.Set(ctx, op.Name, sandbox.SpecChange{Labels: map[string]string{"n": op.Arg}, Pids: &op.Pids})
	case model.Snapshot:
		_, err = p.c.Snapshot(ctx, op.Name, sandbox.SnapshotSpec{Name: op.Arg, Memory: op.Memory})
	case model.Restore:
		i, err = p.c.Restore(ctx, op.Name, sandbox.RestoreSpec{Snapshot: op.Arg})
	case model.Fork:
		r.Child, err = p.child(ctx, op)
	case model.WriteFile:
		_, err = p.c.Files(op.Name).Write(ctx, "/root/file", strings.NewReader(op.Arg), sandbox.WriteOptions{})
	case model.ReadFile:
		r.Text, err = p.read(ctx, op.Name, "/root/file")
	case model.ReadStore: // by a command, so that both ways are tried for both
		r.Text, err = p.exec(ctx, op.Name, "cat /memory/file 2>/dev/null || exit 3")
	case model.WriteStore:
		_, err = p.exec(ctx, op.Name, fmt.Sprintf("echo %s >/memory/.$$ && mv /memory/.$$ /memory/file", op.Arg))
	case model.Bump:
		var out string
		if out, err = p.exec(ctx, op.Name, bump); err == nil {
			r.Count, err = strconv.ParseInt(out, 10, 64)
		}
	}
	r.State, r.Label, r.Pids = string(i.State), i.Spec.Labels["n"], i.Spec.Pids
	if i.Next != nil {
		r.Next = i.Next.Pids
	}
	if i.Lost != "" {
		err = fmt.Errorf("it lost its memory: %s", i.Lost)
	}
	if err == nil {
		return r
	}
	var problem *client.Problem
	kind := ""
	if errors.As(err, &problem) {
		kind = strings.TrimPrefix(problem.Type, client.ProblemType)
	}
	switch kind {
	case "no-sandbox":
		r.Outcome = model.NoSandbox
	case "no-snapshot":
		r.Outcome = model.NoSnapshot
	case "state":
		r.Outcome = model.NoState
	case "no-file":
		r.Outcome = model.NoFile
	default:
		r.Outcome, r.Err = model.Unknown, err
		p.mu.Lock()
		p.odd[fmt.Sprintf("%s: %s", op.Verb, err)]++
		p.mu.Unlock()
	}
	return r
}

func (p *player) read(ctx context.Context, name, path string) (string, error) {
	_, body, err := p.c.Files(name).Read(ctx, path)
	if err != nil {
		return "", err
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	return strings.TrimSpace(string(text)), err
}

// errCommand is of a command that was ended.
var errCommand = errors.New("the command ended otherwise")

func (p *player) exec(ctx context.Context, name, shell string) (string, error) {
	var out, errs bytes.Buffer
	code, err := p.c.Exec(ctx, name, sandbox.CommandSpec{Args: []string{"sh", "-c", shell}}, sandbox.Streams{Stdout: &out, Stderr: &errs})
	switch {
	case err != nil:
		return "", err
	case code == 3:
		return "", nil // no such file
	case code != 0:
		return "", fmt.Errorf("%w: %d, %q", errCommand, code, errs.String())
	}
	return strings.TrimSpace(out.String()), nil
}

// child makes a fork, looks at what it has, and removes it.
func (p *player) child(ctx context.Context, op model.Op) (*model.Contents, error) {
	list, err := p.c.Fork(ctx, op.Name, sandbox.ForkSpec{Snapshot: op.Arg, Count: 1})
	if err != nil {
		return nil, err
	}
	name := list[0].Name
	c := &model.Contents{Live: list[0].State == sandbox.Running}
	for verb, see := range map[model.Verb]func(model.Result){
		model.ReadFile:  func(r model.Result) { c.File = r.Text },
		model.ReadStore: func(r model.Result) { c.Store = r.Text },
		model.Bump:      func(r model.Result) { c.Count = r.Count - 1 },
	} {
		r := p.do(ctx, model.Op{Verb: verb, Name: name})
		if r.Err != nil {
			return nil, fmt.Errorf("%s of the fork: %w", verb, r.Err)
		}
		see(r)
	}
	return c, p.c.Remove(ctx, name)
}

// small makes sandboxes of which many run at once.
func (r *rig) small() {
	limits := fmt.Sprintf("sandbox: {memory: 192MiB, disk: 128MiB, pids: %d, ", modelPids)
	r.configure(strings.Replace(baseConfig, "sandbox: {", limits, 1), ruleConfig)
}

// history is what the log has of sandboxes, but for the commands that ran in them.
func (r *rig) history() (list []model.Event) {
	r.t.Helper()
	for e, err := range auditlog.Read(r.t.Context(), filepath.Join(r.dir, "data/audit"), auditlog.Query{Kind: audit.KindLifecycle}) {
		must.OK(r.t, err)
		if x := e.Unmapped.Sallyport; x.SandboxID != "" && x.State != sandbox.CommandEvent && x.Memory == nil {
			list = append(list, model.Event{Name: x.Sandbox, ID: x.SandboxID, Session: x.Session, State: x.State})
		}
	}
	return list
}

// TestModel: eight clients do 80 things at random to ten sandboxes, 200 in a soak. The answers
// that each gets, the sandboxes in the end, and the log, agree with a simple model of a
// sandbox. SALLYPORT_SEED plays the same again, as far as chance allows.
func TestModel(t *testing.T) {
	r := newRig(t, "")
	r.small()
	r.up()
	none := r.things()
	p := &player{c: client.Unix(filepath.Join(r.dir, "run/sallyport.sock")), odd: map[string]int{}}
	g := model.Game{Seed: seed(t), Clients: 8, Calls: soak(80, 200), Names: 10, Pids: modelPids, Do: func(op model.Op) model.Result { return p.do(t.Context(), op) }}
	began := time.Now()
	calls := g.Play()
	t.Logf("%d calls in %v; uses that others' calls ended: %v", len(calls), time.Since(began).Round(time.Second), p.odd)
	for _, c := range calls {
		if c.Result.Outcome == model.Unknown || c.Ended-c.Began > 10*time.Second {
			t.Log(c)
		}
	}
	events := r.history()
	if err := model.Check(calls, events, modelPids, 5*time.Minute); err != nil {
		t.Errorf("%v\n%s", err, r.logged())
	}
	// A few sleep, so that what sleeps is compared as well.
	list, err := p.c.Sandboxes(t.Context())
	must.OK(t, err)
	for n, i := range list {
		sleep := []func(context.Context, string) (sandbox.Info, error){p.c.Pause, p.c.Hibernate, p.c.Stop, p.c.Sandbox}[n%4]
		if _, err := sleep(t.Context(), i.Name); err != nil {
			t.Error(err)
		}
	}
	r.agrees(0)
	for _, i := range list {
		if err := p.c.Remove(t.Context(), i.Name); err != nil {
			t.Error(err)
		}
	}
	r.agrees(0)
	if left := r.things(); !slices.Equal(left, none) {
		t.Errorf("left when all is removed: %v, there was %v", left, none)
	}
}
