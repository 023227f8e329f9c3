package terminal_test

import (
	"bytes"
	"encoding/json"
	"strconv"
	"testing"

	"sallyport/internal/terminal"
	"sallyport/internal/test/must"
)

func TestJSON(t *testing.T) {
	for _, text := range []string{
		"plain", "", "\x1b[2J", "\u009b2J", "a\x7f", "a\u202egpj.exe", "\u2066", "\u200b\ufeff", "ünï 日本 🙂", "\U000e0041", "a\nb\t\"\\", "<&>",
	} {
		var out bytes.Buffer
		e := terminal.JSON(&out)
		e.SetIndent("", "  ")
		must.OK(t, e.Encode(map[string]string{"path " + text: text}))
		for _, r := range out.String() {
			if r != '\n' && !strconv.IsPrint(r) {
				t.Errorf("%q: %U is in %q", text, r, out.String())
			}
		}
		var back map[string]string
		if err := json.Unmarshal(out.Bytes(), &back); err != nil || back["path "+text] != text {
			t.Errorf("%q came back as %q, %v", text, back, err)
		}
	}
}
