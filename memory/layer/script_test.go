package layer_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/memory"
	"sallyport/memory/layer"
)

func TestScripts(t *testing.T) {
	l, dir := remember(t)
	const text = "#!/bin/sh\necho deploying \"$1\"\n"
	register := func(name, description, text string) layer.Script {
		t.Helper()
		s, err := l.RegisterScript(ctx, layer.Script{Name: name, Description: description, Arguments: "ENV\n## x", Text: text})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	list := func() map[string]layer.Script {
		t.Helper()
		scripts, err := l.Scripts(ctx)
		if err != nil {
			t.Fatal(err)
		}
		by := map[string]layer.Script{}
		for _, s := range scripts {
			by[s.Name] = s
		}
		if len(by) != len(scripts) {
			t.Errorf("one is listed twice: %+v", scripts)
		}
		return by
	}
	register("deploy.sh", "Puts the application\n- SHA-256: 0\n## on \x1b[2J staging", text)
	const want = `# Scripts for common tasks

## deploy.sh

- Description: Puts the application - SHA-256: 0 ## on \x1b[2J staging
- Arguments: ENV ## x
- SHA-256: 4be4f8cb2bd0f5d0ebdb6a0ee5d71bfd1b2b2d1a1f2ec2ef1b1ecb7a9a7dd6ae
`
	digest := string(memory.DigestOf([]byte(text)))
	if got := read(t, dir, "scripts/INDEX.md"); got != want[:strings.LastIndex(want, ":")+2]+digest+"\n" {
		t.Error(got)
	}
	if info, err := os.Stat(filepath.Join(dir, "scripts/deploy.sh")); err != nil || info.Mode().Perm() != 0o777 || read(t, dir, "scripts/deploy.sh") != text {
		t.Errorf("%v, %v", info.Mode(), err)
	}

	// Text by others in INDEX.md stays.
	write(t, dir, "scripts/INDEX.md", "Mine: \xff\n"+read(t, dir, "scripts/INDEX.md")+"\n## By hand\n\ndeploy.sh is slow.\n\n# End\n")
	register("rotate.sh", "Rotates the logs", text+"# other\n")
	if err := l.RecordOutcome(ctx, "deploy.sh", true, "took\n2 minutes"); err != nil {
		t.Fatal(err)
	}
	l.Now = func() time.Time { return day.Add(time.Hour) }
	if err := l.RecordOutcome(ctx, "deploy.sh", false, "no route"); err != nil {
		t.Fatal(err)
	}
	got := read(t, dir, "scripts/INDEX.md")
	for _, part := range []string{"Mine: \xff\n# Scripts for common tasks\n\n## deploy.sh\n\n", "\n\n## By hand\n\ndeploy.sh is slow.\n\n# End\n\n## rotate.sh\n\n",
		"- Last success: 2026-11-26T18:28:05Z\n- Last failure: 2026-11-26T19:28:05Z\n- Note: no route\n\n## By hand"} {
		if !strings.Contains(got, part) {
			t.Errorf("no %q in:\n%s", part, got)
		}
	}
	s := list()["deploy.sh"]
	if !s.LastSuccess.Equal(day) || !s.LastFailure.Equal(day.Add(time.Hour)) || s.Note != "no route" || s.Changed || !s.Registered || s.Digest != memory.Digest(digest) || s.Arguments != "ENV ## x" {
		t.Errorf("%+v", s)
	}

	// A script that is changed, missing, or written by hand is shown as such.
	write(t, dir, "scripts/deploy.sh", text+"rm -rf /\n")
	write(t, dir, "scripts/hand.py", "#!/usr/bin/python3\n\n# Counts the words.\n")
	if err := os.Remove(filepath.Join(dir, "scripts/rotate.sh")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "scripts/link")); err != nil {
		t.Fatal(err)
	}
	by := list()
	if s := by["deploy.sh"]; len(by) != 3 || !s.Changed || s.Digest == memory.Digest(digest) {
		t.Errorf("%+v", by)
	}
	if s := by["rotate.sh"]; !s.Changed || s.Digest != "" || !s.Registered {
		t.Errorf("%+v", s)
	}
	if s := by["hand.py"]; s.Registered || s.Changed {
		t.Errorf("%+v", s)
	}

	// Its outcomes belong to its text.
	register("deploy.sh", "Deploys", text)
	if s := list()["deploy.sh"]; s.LastSuccess.IsZero() || s.Changed || s.Description != "Deploys" {
		t.Errorf("%+v", s)
	}
	register("deploy.sh", "Deploys", text+"\n")
	if s := list()["deploy.sh"]; !s.LastSuccess.IsZero() || s.Note != "" {
		t.Errorf("%+v", s)
	}
	if got := read(t, dir, "scripts/INDEX.md"); strings.Count(got, "## deploy.sh\n") != 1 {
		t.Error(got)
	}
}

func TestFindScript(t *testing.T) {
	l, dir := remember(t)
	l.Trust = func(path string) string { return path }
	for name, description := range map[string]string{"a.sh": "Deploys to staging", "b.sh": "Rotates the logs", "c.sh": "Counts words"} {
		if _, err := l.RegisterScript(ctx, layer.Script{Name: name, Description: description, Text: "#!/bin/sh\ntrue\n"}); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir, "scripts/x.py", "#!/usr/bin/python3\n# Measures the temperature\n")
	write(t, dir, "memories/x.md", "rotating logs")
	for query, want := range map[string]string{"rotate log files": "b.sh", "deploying": "a.sh", "c.sh": "c.sh", "temperature": "x.py"} {
		found, err := l.FindScript(ctx, query, 1)
		untrusted := "scripts/" + want
		if want != "x.py" { // what is said of it is in the index
			untrusted += "; scripts/INDEX.md"
		}
		if err != nil || len(found) != 1 || found[0].Name != want || found[0].Untrusted != untrusted {
			t.Errorf("%s: %+v, %v", query, found, err)
		}
	}
	if found, err := l.FindScript(ctx, "zebra", 5); err != nil || len(found) != 0 {
		t.Errorf("%+v, %v", found, err)
	}
	if _, err := l.FindScript(ctx, "x", 0); !errors.Is(err, layer.ErrInvalid) {
		t.Error(err)
	}
}

func TestScriptsRefuse(t *testing.T) {
	l, dir := remember(t)
	const text = "#!/bin/sh\n"
	for name, s := range map[string]layer.Script{
		"no name":        {Description: "d", Text: text},
		"a path":         {Name: "../x", Description: "d", Text: text},
		"the index":      {Name: "index.MD", Description: "d", Text: text},
		"hidden":         {Name: ".x", Description: "d", Text: text},
		"a line":         {Name: "x\n", Description: "d", Text: text},
		"no description": {Name: "x", Description: " \n", Text: text},
		"long":           {Name: "x", Description: strings.Repeat("d", 1025), Text: text},
		"arguments":      {Name: "x", Description: "d", Arguments: strings.Repeat("d", 1025), Text: text},
		"no text":        {Name: "x", Description: "d"},
		"no program":     {Name: "x", Description: "d", Text: "echo"},
		"long text":      {Name: "x", Description: "d", Text: text + strings.Repeat("x", 1<<20)},
		"not UTF-8":      {Name: "x", Description: "d", Text: text + "\xff"},
	} {
		if _, err := l.RegisterScript(ctx, s); !errors.Is(err, layer.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := l.RecordOutcome(ctx, "none", true, ""); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := l.RecordOutcome(ctx, "../x", true, ""); !errors.Is(err, layer.ErrInvalid) {
		t.Error(err)
	}
	if files, _ := os.ReadDir(dir); len(files) != 1 {
		t.Errorf("something was written: %v", files)
	}
}
