package learn

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sallyport/policy"
)

// errAmend says that a configuration is written in a way that is not added to.
var errAmend = errors.New("the list egress is not written in a way that rules can be added to; write it as a block, one rule to an item")

// Amend adds proposed rules to the list egress of a configuration's text, and
// leaves all else of it as it is, comments included. A person reads the result before using
// it: see [Report].
func Amend(text string, proposals []Proposal) (string, error) {
	if len(proposals) == 0 {
		return text, nil
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	lines := strings.SplitAfter(text, "\n")
	lines = lines[:len(lines)-1]
	at := slices.IndexFunc(lines, func(l string) bool { return topKey(l) == "egress" })
	if at < 0 {
		end := len(lines)
		for end > 0 && strings.TrimSpace(lines[end-1]) == "..." {
			end--
		}
		return strings.Join(slices.Insert(slices.Clone(lines), end, "egress:\n", block(proposals, "")), ""), nil
	}
	switch strings.TrimSpace(withoutComment(strings.TrimPrefix(unquoted(lines[at]), "egress:"))) {
	case "[]", "null", "~":
		lines[at] = "egress:\n" + block(proposals, "")
		return strings.Join(lines, ""), nil
	case "":
	default:
		return "", errAmend
	}
	// The items are what follows up to the next key; comments before that are its.
	end, last, indent := at+1, at, -1
	for ; end < len(lines); end++ {
		l := lines[end]
		bare := strings.TrimSpace(l)
		if bare == "" || bare[0] == '#' {
			continue
		}
		if topKey(l) != "" || bare == "---" || bare == "..." {
			break
		}
		if indent < 0 {
			if bare[0] != '-' {
				return "", errAmend
			}
			indent = len(l) - len(strings.TrimLeft(l, " "))
		}
		last = end
	}
	added := block(proposals, strings.Repeat(" ", max(indent, 0)))
	return strings.Join(slices.Insert(slices.Clone(lines), last+1, added), ""), nil
}

// topKey is the key of a line of a document's outermost mapping, or "".
func topKey(line string) string {
	if line == "" || strings.ContainsRune(" \t#-\n\r%", rune(line[0])) {
		return ""
	}
	key, _, found := strings.Cut(unquoted(line), ":")
	if !found {
		return ""
	}
	return key
}

// unquoted takes the quotes off a line's key.
func unquoted(line string) string {
	for _, q := range []string{`"egress"`, "'egress'"} {
		if rest, ok := strings.CutPrefix(line, q); ok {
			return "egress" + rest
		}
	}
	return line
}

func withoutComment(s string) string {
	if i := strings.Index(s, " #"); i >= 0 {
		return s[:i]
	}
	return s
}

// block writes the rules as items of a list.
func block(proposals []Proposal, indent string) string {
	var b strings.Builder
	for _, p := range proposals {
		r := p.Rule
		one, unread := "request", ""
		if r.Action == policy.Tunnel {
			one, unread = "connection", ", which nobody could read"
		}
		fmt.Fprintf(&b, "%s# %s%s, as %s\n", indent, counted(p.Requests, one), unread, policy.Clean(strings.Join(p.Examples, ", ")))
		fmt.Fprintf(&b, "%s- name: %s\n", indent, scalar(r.Name))
		line := func(key, value string) { fmt.Fprintf(&b, "%s  %s: %s\n", indent, key, value) }
		line("destination", scalar(r.Destination))
		if r.Action != "" {
			line("action", string(r.Action))
		}
		if len(r.Ports) > 0 {
			line("ports", strings.ReplaceAll(fmt.Sprint(r.Ports), " ", ", "))
		}
		if r.Plain {
			line("plain", "true")
		}
		if len(r.Methods) > 0 {
			line("methods", listed(r.Methods))
		}
		if len(r.Paths) > 0 {
			fmt.Fprintf(&b, "%s  paths:\n", indent)
			for _, glob := range r.Paths {
				fmt.Fprintf(&b, "%s  - %s\n", indent, scalar(glob))
			}
		}
		if len(r.Sandboxes.Names) > 0 {
			line("sandboxes", "{names: "+listed(r.Sandboxes.Names)+"}")
		}
		if r.Upstream != nil {
			line("upstream", upstreamText(r.Upstream))
		}
	}
	return b.String()
}

func counted(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// upstreamText is an upstream as it is written on one line.
func upstreamText(u *policy.Upstream) string {
	if u == nil {
		return ""
	}
	var parts []string
	if len(u.Addresses) > 0 {
		parts = append(parts, "addresses: "+listed(u.Addresses))
	}
	for _, k := range []struct{ key, value string }{
		{"roots", u.Roots}, {"resolver", u.Resolver}, {"proxy", u.Proxy}, {"proxyAuthRef", u.ProxyAuthRef}, {"proxyRoots", u.ProxyRoots}, {"resolve", u.Resolve},
	} {
		if k.value != "" {
			parts = append(parts, k.key+": "+scalar(k.value))
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func listed(list []string) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quoted[i] = scalar(s)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// scalar is a string as YAML takes it, which is as JSON does.
func scalar(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string has no error
	return strings.TrimSuffix(b.String(), "\n")
}
