package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	memory "sallyport/memory/client"
	"sallyport/memory/keeper"
	"sallyport/memory/layer"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// agent works on one task in one sandbox.
type agent struct {
	c                *client.Client
	model            model
	sandbox, session string
	sub              bool // it is another agent's
	began            time.Time
}

const (
	maxCalls  = 50       // of the model, for one task
	maxOutput = 32 << 10 // bytes of each stream of a command that the model is shown
)

const manner = `You are an agent. You work in a computer of your own with the tool bash: its files stay, a working directory and variables do not.
A script begins with "#!" and a line "# " that says what it does. Run it by its path.

`

var (
	bashTool = tool{"bash", "Run a command with bash. The result is JSON with stdout, stderr and exit_code.",
		json.RawMessage(`{"type":"object","properties":{"command":{"type":"string"}},"required":["command"]}`)}
	delegateTool = tool{"delegate", "Have a second agent do a task in a copy of your computer, with your files and memory as they are now. It leaves its result in a file, which comes back to the same path here. Nothing else of the copy does.",
		json.RawMessage(`{"type":"object","properties":{"task":{"type":"string"},"file":{"type":"string","description":"absolute path"}},"required":["task","file"]}`)}
)

// do works on a task until the model has an answer and the plan that it wrote is done.
func (a *agent) do(ctx context.Context, task string) (string, error) {
	if _, err := a.c.Create(ctx, a.sandbox, sandbox.Spec{}); err != nil {
		return "", err
	}
	tools := []tool{bashTool, delegateTool}
	if a.sub {
		tools = tools[:1]
	}
	before, err := a.openSteps(ctx)
	if err != nil {
		return "", err
	}
	talk := []message{{text: task}}
	if err := a.remember(ctx, "user", task); err != nil {
		return "", err
	}
	asked := false
	for range maxCalls {
		system, err := a.recall(ctx, task)
		if err != nil {
			return "", err
		}
		said, err := a.model.next(ctx, system, tools, talk)
		if err != nil {
			return "", err
		}
		talk = append(talk, said)
		if err := a.remember(ctx, "assistant", said.text); err != nil {
			return "", err
		}
		if len(said.calls) == 0 {
			open, err := a.openSteps(ctx)
			if err != nil || asked || open == "" || open == before {
				return said.text, err
			}
			talk, asked = append(talk, message{text: "These steps of your plan are not done. Do them, or say why not:\n" + open}), true
			continue
		}
		var done message
		for _, c := range said.calls {
			text, err := a.use(ctx, c)
			if err != nil {
				return "", err
			}
			done.results = append(done.results, result{c.id, text})
			if err := a.remember(ctx, "tool", fmt.Sprintf("%s %s\n%s", c.name, c.input, text)); err != nil {
				return "", err
			}
		}
		talk, asked = append(talk, done), false
	}
	return "", fmt.Errorf("no answer after %d calls of the model", maxCalls)
}

// recall is the system prompt of a call: the core of the memory, what of the rest has to
// do with the task, scripts for it, and the steps of plans that are to be done.
func (a *agent) recall(ctx context.Context, task string) (string, error) {
	core, err := memory.Prompt.Do(ctx, a.c, client.None{}, a.sandbox)
	if err != nil {
		return "", err
	}
	found, err := memory.FormatForContext.Do(ctx, a.c, keeper.Question{Query: task, Budget: 1000, Until: a.began}, a.sandbox)
	if err != nil {
		return "", err
	}
	scripts, err := memory.FindScripts.Do(ctx, a.c, keeper.Question{Query: task, Limit: 5}, a.sandbox)
	if err != nil {
		return "", err
	}
	open, err := a.openSteps(ctx)
	text := manner + core.Text + "\n" + found.Text
	if len(scripts) > 0 {
		text += "\nScripts that may do it:\n"
	}
	for _, s := range scripts {
		if s.Untrusted != "" || s.Changed {
			text += "[read it before you run it: it has changed, or is not trusted]\n"
		}
		text += fmt.Sprintf("> %s%s %s: %s\n", scriptFolder, s.Name, s.Arguments, s.Description)
	}
	if open != "" {
		text += "\nSteps of plans that are not done:\n" + open
	}
	return text, err
}

// remember appends a turn to the history.
func (a *agent) remember(ctx context.Context, role, text string) error {
	if text == "" {
		return nil
	}
	fmt.Fprintf(os.Stderr, "%s %s: %.500q\n", a.sandbox, role, text)
	_, err := memory.AppendTurn.Do(ctx, a.c, keeper.TurnRequest{Role: role, Content: text, Session: a.session}, a.sandbox)
	return err
}

// openSteps are the lines of plans that are not ticked off.
func (a *agent) openSteps(ctx context.Context) (string, error) {
	r, err := a.bash(ctx, "grep -s '^- \\[ \\]' /memory/plans/*")
	return r.Stdout, err
}

// use carries out a call of a tool. The result is for the model, also if it has failed; an
// error is of the daemon.
func (a *agent) use(ctx context.Context, c call) (string, error) {
	var in struct{ Command, Task, File string }
	switch err := json.Unmarshal(c.input, &in); {
	case err != nil:
		return "the input is not JSON: " + err.Error(), nil
	case c.name == bashTool.name:
		r, err := a.bash(ctx, in.Command)
		if err == nil {
			err = a.script(ctx, in.Command, r.ExitCode)
		}
		text, _ := json.Marshal(r)
		return string(text), err
	case c.name == delegateTool.name && !a.sub:
		text, err := a.delegate(ctx, in.Task, in.File)
		if err != nil {
			return "it failed: " + err.Error(), ctx.Err()
		}
		return text, nil
	}
	return fmt.Sprintf("there is no tool %q", c.name), nil
}

// bashResult is what a command printed, and how it ended.
type bashResult struct {
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	ExitCode int    `json:"exit_code"`
}

func (a *agent) bash(ctx context.Context, command string) (bashResult, error) {
	var out, errs clipped
	code, err := a.c.Exec(ctx, a.sandbox, sandbox.CommandSpec{Args: []string{"bash", "-c", command}, TimeoutMs: 120_000}, sandbox.Streams{Stdout: &out, Stderr: &errs})
	return bashResult{out.text(), errs.text(), code}, err
}

// clipped keeps the first bytes that are written.
type clipped struct {
	kept bytes.Buffer
	more int
}

func (c *clipped) Write(p []byte) (int, error) {
	n := min(len(p), maxOutput-c.kept.Len())
	c.kept.Write(p[:n])
	c.more += len(p) - n
	return len(p), nil
}

func (c *clipped) text() string {
	text := strings.ToValidUTF8(c.kept.String(), "\uFFFD")
	if c.more > 0 {
		text += fmt.Sprintf("\n[%d bytes more]", c.more)
	}
	return text
}

const scriptFolder = "/memory/scripts/"

var inScripts = regexp.MustCompile(scriptFolder + `([\w.-]+)`)

// script notes how a command ended that runs a script. It gives a script that a command
// has written its place in the index, with its second line, a comment, as description.
func (a *agent) script(ctx context.Context, command string, code int) error {
	named := inScripts.FindStringSubmatch(command)
	if named == nil {
		return nil
	}
	list, err := memory.FindScripts.Do(ctx, a.c, keeper.Question{}, a.sandbox)
	i := slices.IndexFunc(list, func(s layer.Script) bool { return s.Name == named[1] && s.Digest != "" })
	if err != nil || i < 0 {
		return err
	}
	switch runs := strings.HasPrefix(command, named[0]); {
	case list[i].Registered && runs:
		_, err = memory.RecordOutcome.Do(ctx, a.c, keeper.Outcome{Name: named[1], OK: code == 0, Note: fmt.Sprintf("exit code %d", code)}, a.sandbox)
		return err
	case list[i].Registered && !list[i].Changed:
		return nil
	}
	_, contents, err := a.c.Files(a.sandbox).Read(ctx, named[0])
	if err != nil {
		return err
	}
	defer contents.Close()
	text, err := io.ReadAll(io.LimitReader(contents, 1<<20))
	lines := strings.SplitN(string(text), "\n", 3)
	if err != nil || len(lines) < 3 || !strings.HasPrefix(lines[0], "#!") || !strings.HasPrefix(lines[1], "# ") {
		return err
	}
	_, err = memory.RegisterScript.Do(ctx, a.c, layer.Script{Name: named[1], Description: fmt.Sprintf("%.200s", lines[1][2:]), Text: string(text)}, a.sandbox)
	return err
}

// delegate has a second agent do a task in a fork of the sandbox, and copies its result.
func (a *agent) delegate(ctx context.Context, task, file string) (text string, err error) {
	forks, err := a.c.Fork(ctx, a.sandbox, sandbox.ForkSpec{})
	if err != nil {
		return "", err
	}
	b := *a
	b.sandbox, b.session, b.sub, b.began = forks[0].Name, a.session+"-"+forks[0].Name, true, time.Now().Truncate(time.Millisecond)
	defer func() {
		if removed := a.c.Remove(context.WithoutCancel(ctx), b.sandbox); err == nil {
			err = removed
		}
	}()
	if _, err := b.do(ctx, task+"\n\nLeave the result in the file "+file+"."); err != nil {
		return "", err
	}
	_, contents, err := a.c.Files(b.sandbox).Read(ctx, file)
	if err != nil {
		return "", err
	}
	defer contents.Close()
	if _, err := a.c.Files(a.sandbox).Write(ctx, file, contents, sandbox.WriteOptions{Parents: true}); err != nil {
		return "", err
	}
	return "the result is in " + file, nil
}
