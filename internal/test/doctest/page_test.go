package doctest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	one = "0199c1de-66c4-7a1b-9d5e-3a1f0c2b4d5e"
	two = "0199c1de-66c4-7a1b-9d5e-3a1f0c2b4d5f"
	red = "01a00000-0000-7000-8000-000000000001"
	set = "01a00000-0000-7000-8000-000000000002"
)

func TestMatch(t *testing.T) {
	for _, tt := range []struct {
		name, want, got string
		known           Bindings
		same            bool
	}{
		{"nothing", "", "", nil, true},
		{"the same", "a b\nc\n", "a b\nc\n", nil, true},
		{"no newline at the end", "a\n", "a", nil, true},
		{"other text", "a\n", "b\n", nil, false},
		{"more lines", "a\n", "a\nb\n", nil, false},
		{"fewer", "a\nb\n", "a\n", nil, false},
		{"printed where nothing is shown", "", "a\n", nil, false},
		{"text within a line", "a … c\n", "a b b c\n", nil, true},
		{"which is one line", "a … c\n", "a b\nb c\n", nil, false},
		{"any lines", "a\n…\nc\n", "a\nb\nb\nc\n", nil, true},
		{"no lines", "a\n…\nc\n", "a\nc\n", nil, true},
		{"any lines, and the last differs", "a\n…\nc\n", "a\nb\nd\n", nil, false},
		{"an id", one + "\n", red + "\n", nil, true},
		{"another that is not the same", one + " " + one + "\n", red + " " + set + "\n", nil, false},
		{"one for two", one + " " + two + "\n", red + " " + red + "\n", nil, false},
		{"two", one + " " + two + "\n", red + " " + set + "\n", nil, true},
		{"one that is known", one + "\n", red + "\n", Bindings{one: red}, true},
		{"one that is known as another", one + "\n", set + "\n", Bindings{one: red}, false},
		{"one that is known by another name", two + "\n", red + "\n", Bindings{one: red}, false},
		{"a word for an id", one + "\n", "x\n", nil, false},
		{"a digest", "policy 0123456789abcdef\n", "policy fedcba9876543210\n", nil, true},
		{"a short number is none", "0123456\n", "7654321\n", nil, false},
		{"times", "at 2026-12-01T00:00:00Z for 4m59s, 10:00:00\n", "at 2027-01-02 03:04:05 for 5m0s, 11:22:33\n", nil, true},
		{"a period of a policy", "every 24h\n", "every 23h\n", nil, false},
		{"a process", "up, pid 12, log\n", "up, pid 34567, log\n", nil, true},
		{"columns", "ID    NAME\n1     x\n", "ID  NAME\n1   x\n", nil, true},
		{"an indentation", "a\n    b\n", "a\n  b\n", nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.known.Match(tt.want, tt.got); (got != nil) != tt.same {
				t.Errorf("got %v, want %v", got, tt.same)
			}
		})
	}
}

type play struct {
	files  map[string]string
	shows  map[string]string
	played []string
}

func (p *play) Write(file, text string) error { p.files[file] = text; return nil }

func (p *play) Run(command string) (string, error) {
	p.played = append(p.played, command)
	if out, ok := p.shows[command]; ok {
		return out, nil
	}
	return "", errors.New("not known")
}

func TestFollow(t *testing.T) {
	const document = "# Page\n\n```yaml\npolicy: {dir: policy.d}\n```\n```rego\npackage sallyport.team.hours\n```\n" +
		"```console\n$ sallyport ask \\\n    twice\nid " + one + "\n$ sallyport answer " + one + "\ndone\n```\n"
	act := func() *play {
		return &play{files: map[string]string{}, shows: map[string]string{
			"sallyport ask \\\n    twice": "id " + red + "\n", "sallyport answer " + red: "done\n", "cat x": "",
		}}
	}
	for _, tt := range []struct{ name, old, now, fault string }{
		{"as it is", "", "", ""},
		{"a command that fails", "answer", "reply", "line 13: sallyport reply 0199c1de-66c4-7a1b-9d5e-3a1f0c2b4d5e: not known"},
		{"other output", "done", "gone", "line 13: "},
		{"a listing that nothing uses", "```rego\n", "```rego other.d/x.rego\n", "line 7: other.d/x.rego is used by no command"},
		{"one that is replaced unused", "```rego\n", "```yaml\na: b\n```\n```rego\n", "line 4: sallyport.yaml is used by no command"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := act()
			faults, mended, ran := Follow(strings.Replace(document, tt.old, tt.now, 1), a)
			switch {
			case tt.fault == "":
				if len(faults) > 0 || mended != document || ran != 2 {
					t.Errorf("got %v after %d commands", faults, ran)
				}
				if diff := cmp.Diff(a.files, map[string]string{"sallyport.yaml": "policy: {dir: policy.d}\n", "policy.d/hours.rego": "package sallyport.team.hours\n"}); diff != "" {
					t.Error(diff)
				}
			case len(faults) == 0 || !strings.HasPrefix(faults[0].Error(), tt.fault):
				t.Errorf("got %v, want %q", faults, tt.fault)
			}
			if tt.name == "other output" && !strings.Contains(mended, "2b4d5e\ndone\n```\n") {
				t.Errorf("mended:\n%s", mended)
			}
		})
	}
}

// The times of files are ahead.
func TestFollowTomorrow(t *testing.T) {
	a := &play{files: map[string]string{}}
	Follow("```yaml\n2026-12-01T00:00:00Z\n```\n", a)
	got, err := time.Parse(time.RFC3339, strings.TrimSpace(a.files["sallyport.yaml"]))
	if ahead := time.Until(got); err != nil || ahead < 23*time.Hour || ahead > 49*time.Hour {
		t.Errorf("got %v, %v", got, err)
	}
}
