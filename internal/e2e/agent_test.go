package e2e

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"sallyport/internal/test/must"
)

// scriptedModel stands in for a model, behind OpenAI's form of API and Anthropic's. For each
// task it has a script, and it knows nothing but what a request tells it.
type scriptedModel struct {
	script map[string]func(asked) answer
	key    string

	mu      sync.Mutex
	wrong   []string
	served  map[string]int // answers by host
	offered map[string][]string
}

// asked is what a request for the next turn has.
type asked struct {
	system, task string
	results      []bashSaid // of tools, so far
	last         string     // the last turn's text
	tools        []string
}

// result is what the last tool said.
func (a asked) result() bashSaid { return a.results[len(a.results)-1] }

type bashSaid struct {
	Text   string `json:"-"`
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
	Code   int    `json:"exit_code"`
}

// answer is a text, or the use of a tool.
type answer struct {
	text, tool string
	input      map[string]string
}

func bash(command string) answer {
	return answer{tool: "bash", input: map[string]string{"command": command}}
}

func (m *scriptedModel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var in struct {
		Model  string
		System string
		Tools  []struct {
			Name     string
			Function struct{ Name string }
		}
		Messages []struct {
			Role    string
			Content json.RawMessage
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in.Model != "scripted" {
		m.wrong = append(m.wrong, fmt.Sprintf("%s for the model %q, %v", r.URL, in.Model, err))
	}
	a, key := asked{system: in.System}, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if r.Host == "anthropic.example.test" {
		key = r.Header.Get("X-Api-Key")
	}
	if key != m.key {
		m.wrong = append(m.wrong, fmt.Sprintf("%s: a request with the key %q", r.Host, key))
	}
	for _, t := range in.Tools {
		a.tools = append(a.tools, cmp.Or(t.Name, t.Function.Name))
	}
	for _, turn := range in.Messages {
		var text string
		var blocks []struct{ Type, Text, Content string }
		if json.Unmarshal(turn.Content, &text) != nil {
			_ = json.Unmarshal(turn.Content, &blocks)
		}
		for _, b := range blocks {
			if text = cmp.Or(b.Text, text); b.Type == "tool_result" {
				turn.Role, text = "tool", b.Content
			}
		}
		switch a.last = text; {
		case turn.Role == "system":
			a.system = text
		case turn.Role == "user" && a.task == "":
			a.task, _, _ = strings.Cut(text, "\n")
		case turn.Role == "tool":
			said := bashSaid{Text: text}
			_ = json.Unmarshal([]byte(text), &said) // what delegate says is no JSON
			a.results = append(a.results, said)
		}
	}
	play, ok := m.script[a.task]
	if !ok {
		m.wrong = append(m.wrong, "no script for "+a.task)
		http.Error(w, "no script", http.StatusNotFound)
		return
	}
	next := play(a)
	m.served[r.Host]++
	m.offered[a.task] = a.tools
	id := fmt.Sprintf("call-%d", m.served[r.Host])
	type object = map[string]any
	var out object
	switch input, _ := json.Marshal(next.input); {
	case r.Host == "anthropic.example.test" && next.tool != "":
		out = object{"content": []object{{"type": "tool_use", "id": id, "name": next.tool, "input": next.input}}}
	case r.Host == "anthropic.example.test":
		out = object{"content": []object{{"type": "text", "text": next.text}}}
	case next.tool != "":
		out = object{"choices": []object{{"message": object{"content": nil, "tool_calls": []object{
			{"id": id, "type": "function", "function": object{"name": next.tool, "arguments": string(input)}}}}}}}
	default:
		out = object{"choices": []object{{"message": object{"content": next.text}}}}
	}
	_ = json.NewEncoder(w).Encode(out)
}

const modelRules = `
egressAuth:
- {name: openai, destination: openai.example.test, sandboxes: {tags: {role: model}}, authRef: key, upstream: &lab {addresses: [198.51.100.10], roots: ca.pem, resolver: "198.51.100.10:53"}}
- name: anthropic
  destination: anthropic.example.test
  sandboxes: {tags: {role: model}}
  authRef: key
  inject: {header: {name: X-Api-Key, value: "{{ .token }}"}}
  upstream: *lab
credentials:
- name: key
`

var remembersName = regexp.MustCompile(`(?m)^> - The user's name is (\w+)\.$`)

// agentScript is the model's part in the story.
func agentScript(name string) map[string]func(asked) answer {
	const script, notes = "/memory/scripts/count-notes", "Count the words of the notes."
	return map[string]func(asked) answer{
		"My name is " + name + ". Greet me.": func(a asked) answer {
			if len(a.results) == 0 {
				return bash("echo \"- The user's name is " + name + ".\" >> /memory/memories.md")
			}
			return answer{text: "Hello, " + name + "."}
		},
		"What is my name?": func(a asked) answer {
			if m := remembersName.FindStringSubmatch(a.system); m != nil {
				return answer{text: "Your name is " + m[1] + "."}
			}
			return answer{text: "I do not know."}
		},
		"Call me Grace from now on.": func(a asked) answer {
			if len(a.results) == 0 {
				return bash("sed -i 's/name is .*/name is Grace./' /memory/memories.md")
			}
			return answer{text: "Hello, Grace."}
		},
		"What did I call myself when I said: Greet me?": func(a asked) answer {
			if strings.Contains(a.system, "> My name is "+name+". Greet me.") {
				return answer{text: name}
			}
			return answer{text: "I do not know."}
		},
		notes: func(a asked) answer {
			switch known := strings.Contains(a.system, "> "+script+" : Count the words of the notes\n"); {
			case len(a.results) > 0 && a.result().Stdout != "":
				return answer{text: strings.TrimSpace(a.result().Stdout)}
			case known:
				return bash(script)
			}
			return bash("echo one two three > /root/notes; mkdir -p /memory/scripts; cat > " + script + " <<'END'\n#!/bin/sh\n# Count the words of the notes\nwc -w < /root/notes\nEND")
		},
		"Fail.": func(a asked) answer {
			if len(a.results) == 0 {
				return bash("echo out; echo err >&2; exit 3")
			}
			return answer{text: a.result().Text}
		},
		"Build the report by a plan.": func(a asked) answer {
			switch len(a.results) {
			case 0:
				return bash("mkdir -p /memory/plans; printf -- '- [ ] collect\\n- [ ] write\\n' > /memory/plans/report.md")
			case 1:
				return bash("echo collected > /root/report; sed -i 's/\\[ \\] collect/[x] collect/' /memory/plans/report.md")
			case 2:
				if !strings.Contains(a.last, "- [ ] write") {
					return answer{text: "I have collected, and forgotten the rest."}
				}
				return bash("echo written >> /root/report; sed -i 's/\\[ \\] write/[x] write/' /memory/plans/report.md")
			}
			if strings.Contains(a.system, "Steps of plans") {
				return answer{text: "a step is left"}
			}
			return answer{text: "The report is built."}
		},
		"Have the primes listed.": func(a asked) answer {
			switch len(a.results) {
			case 0:
				return answer{tool: "delegate", input: map[string]string{"task": "List the primes below 10.", "file": "/root/work/primes"}}
			case 1:
				return bash("cat /root/work/primes; ls /root/litter /memory/memories/litter.md")
			}
			return answer{text: a.results[0].Text + "; " + a.result().Stdout + fmt.Sprint(a.result().Code)}
		},
		"List the primes below 10.": func(a asked) answer {
			if len(a.results) == 0 {
				return bash("mkdir -p /root/work /memory/memories; echo 2 3 5 7 > /root/work/primes; touch /root/litter /memory/memories/litter.md")
			}
			return answer{text: "They are in the file."}
		},
	}
}

// The example's agent remembers from day to day, reuses a script, follows its plan, and has
// a second agent work in a fork. The model has the key; no sandbox does.
func TestAgent(t *testing.T) {
	r := newRig(t, "")
	r.configure(baseConfig+"proxy: {listen: \"127.0.0.1:3128\"}\n", modelRules)
	name := "Ada" + rand.Text()
	m := &scriptedModel{script: agentScript(name), key: r.key, served: map[string]int{}, offered: map[string][]string{}}
	r.serveSites(hostMux{"openai.example.test": m, "anthropic.example.test": m})
	r.up()
	r.setKey()
	token := r.ok("client", "add", "agent", "--tag", "role=model")
	r.write("token", token)
	r.write("agent.pem", r.ok("ca", "--client", "agent"))
	for _, form := range []string{"openai", "anthropic"} {
		t.Run(form, func(t *testing.T) {
			defer r.within(t)()
			r.agentStory(form, name)
		})
	}
	for host, want := range map[string]int{"openai.example.test": 20, "anthropic.example.test": 20} {
		if m.served[host] < want {
			t.Errorf("%s gave %d answers, want at least %d", host, m.served[host], want)
		}
	}
	if len(m.wrong) > 0 {
		t.Errorf("the model was asked wrongly: %q", m.wrong)
	}
	if got, want := m.offered["List the primes below 10."], []string{"bash"}; !slices.Equal(got, want) {
		t.Errorf("the second agent has the tools %q, want %q", got, want)
	}
	// The sandbox cannot use the key either.
	if res := r.inside("openai", "curl -sS https://openai.example.test/v1/chat/completions"); !strings.Contains(res.stdout, "Sallyport denied this request") {
		t.Errorf("the sandbox asks the model itself: %s", res)
	}
	h := newHunt(map[string]string{"the key": r.key, "the token": strings.TrimSpace(token), "the name": name})
	id, err := r.docker("inspect", "--format", "{{.Id}}", r.container("openai")).Output()
	must.OK(t, err)
	r.ok("run", "openai", "--", "sh", "-c", "setsid sh -c 'sleep 600; :' "+name+" </dev/null >/dev/null 2>&1 &")
	for _, place := range []struct {
		name   string
		search func(*quarry)
	}{
		{"memory of each process", func(q *quarry) { r.procs(t, q, strings.TrimSpace(string(id)), "mem") }},
		{"environments and command lines", func(q *quarry) {
			r.procs(t, q, strings.TrimSpace(string(id)), "environ")
			r.procs(t, q, strings.TrimSpace(string(id)), "cmdline")
		}},
		{"disk", func(q *quarry) { q.tree(t, filepath.Join(r.dir, "data")) }},
	} {
		q := h.begin()
		place.search(q)
		if len(q.of("the name")) == 0 {
			t.Errorf("%s: the name is not found: the search proves nothing", place.name)
		}
		if found := append(q.of("the key"), q.of("the token")...); len(found) > 0 {
			t.Errorf("%s: a secret is found: %q", place.name, found)
		}
	}
}

// agentStory is what the agent is told, and says.
func (r *rig) agentStory(form, name string) {
	r.t.Helper()
	ask := func(sandbox, session, task string) string {
		r.t.Helper()
		url := "https://openai.example.test/v1/chat/completions"
		if form == "anthropic" {
			url = "https://anthropic.example.test/v1/messages"
		}
		c := exec.Command(filepath.Join(tools.Dir, "agent"), "-sandbox", sandbox, "-session", session, "-model", "scripted", "-url", url,
			fmt.Sprintf("-anthropic=%v", form == "anthropic"), "-socket", filepath.Join(r.dir, "run/sallyport.sock"),
			"-token", filepath.Join(r.dir, "token"), "-ca", filepath.Join(r.dir, "agent.pem"), task)
		var out, errs bytes.Buffer
		c.Stdout, c.Stderr = &out, &errs
		if err := c.Run(); err != nil {
			r.t.Fatalf("%s: %v\n%.5000s", task, err, errs.String())
		}
		return strings.TrimSuffix(out.String(), "\n")
	}
	memory := func(file string) string {
		r.t.Helper()
		data, err := os.ReadFile(filepath.Join(r.dir, "data/sandboxes", form, "memory", file))
		must.OK(r.t, err)
		return string(data)
	}
	twin := form + "-twin"
	for _, s := range []struct{ sandbox, session, task, want string }{
		{form, "day-one", "What is my name?", "I do not know."},
		{form, "day-one", "My name is " + name + ". Greet me.", "Hello, " + name + "."},
		{"", "stop", form, ""},
		{form, "day-two", "What is my name?", "Your name is " + name + "."},
		{form, "day-two", "What did I call myself when I said: Greet me?", name},
		{form, "day-two", "Count the words of the notes.", "3"},
		{form, "day-three", "Count the words of the notes.", "3"},
		{form, "day-three", "Fail.", `{"stdout":"out\n","stderr":"err\n","exit_code":3}`},
		{form, "day-three", "Build the report by a plan.", "The report is built."},
		{"", "fork", form + " " + twin, ""},
		{twin, "day-four", "What is my name?", "Your name is " + name + "."},
		{twin, "day-four", "Call me Grace from now on.", "Hello, Grace."},
		{twin, "day-five", "What is my name?", "Your name is Grace."},
		{form, "day-five", "What is my name?", "Your name is " + name + "."},
		{form, "day-five", "Have the primes listed.", "the result is in /root/work/primes; 2 3 5 7\n2"},
	} {
		if s.sandbox == "" {
			r.ok(append([]string{"sandbox", s.session}, strings.Fields(s.task)...)...)
			continue
		}
		if got := ask(s.sandbox, s.session, s.task); got != s.want {
			r.t.Errorf("%s, %s: %s\ngot  %q\nwant %q", s.sandbox, s.session, s.task, got, s.want)
		}
	}
	turns := memory("conversations.jsonl")
	if got := strings.Count(turns, `cat \\u003e /memory/scripts/count-notes`); got != 1 {
		r.t.Errorf("the script was written %d times, want once", got)
	}
	if got := strings.Count(turns, `{\"command\":\"/memory/scripts/count-notes\"}`); got != 2 {
		r.t.Errorf("the script was run %d times, want twice", got)
	}
	for _, want := range []string{`"session":"day-one","role":"user","content":"My name is`, `"session":"day-two","role":"assistant","content":"Your name is`, `"role":"tool","content":"bash {`} {
		if !strings.Contains(turns, want) {
			r.t.Errorf("the history has no %s:\n%s", want, turns)
		}
	}
	index := memory("scripts/INDEX.md")
	for _, want := range []string{"## count-notes", "Description: Count the words of the notes", "Last success: "} {
		if !strings.Contains(index, want) {
			r.t.Errorf("the index of scripts has no %q:\n%s", want, index)
		}
	}
	if got, want := memory("plans/report.md"), "- [x] collect\n- [x] write\n"; got != want {
		r.t.Errorf("the plan is %q, want %q", got, want)
	}
	if list := r.list(); slices.ContainsFunc(list, func(n string) bool { return strings.HasPrefix(n, form) && n != form && n != twin }) {
		r.t.Errorf("the second agent's sandbox is left: %q", list)
	}
	r.ok("memory", "verify", form)
}
