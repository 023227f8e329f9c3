package supervisor

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// FuzzHear: whatever the gateway's process says, each line of it becomes one line
// of printable text in our log, and none that it could have dated itself.
func FuzzHear(f *testing.F) {
	f.Add([]byte(`{"time":"2026-01-02T03:04:05Z","level":"WARN","msg":"x","sandbox":"a","n":1}` + "\n"))
	f.Add([]byte(`{"msg":"\u007f","\u007f":["\u007f",{"\u007f":1}]}`))
	f.Add([]byte("panic: x\n\ngoroutine 1 [running]:\n"))
	f.Add([]byte(`{"level":"ERROR+99999","msg":"a\nlevel=ERROR msg=b","a\u001b[2J":{"b":["\u202e",null]},"":""}` + "\nlast"))
	f.Add([]byte("\x1b]0;x\a\r\n\xff\x00\u2028\n" + `{"msg":1}` + "\n[]\nnull\n\"level\"\n"))
	f.Add([]byte(strings.Repeat("x", 70_000) + "\n{}\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		var log bytes.Buffer
		w := &Supervisor{o: Options{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.Level(-1 << 62)}))}}
		lines := 0
		for line := range bytes.Lines(said) {
			w.relayLog(bytes.TrimSuffix(line, []byte("\n")))
			lines++
		}
		text := log.String()
		if strings.Count(text, "\n") != lines || !utf8.ValidString(text) || text != "" && !strings.HasSuffix(text, "\n") {
			t.Errorf("%q becomes %q", said, text)
		}
		for line := range strings.Lines(text) {
			line = strings.TrimSuffix(line, "\n")
			if strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) || !strings.HasPrefix(line, "time=") || strings.HasPrefix(line, "time=2026-01-02T03:04:05Z") {
				t.Errorf("%q becomes %q", said, line)
			}
			if len(line) > 16*len(said)+200 {
				t.Errorf("a line of %d bytes of %d", len(line), len(said))
			}
		}
	})
}
