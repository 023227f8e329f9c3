package keeper_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/internal/test/ondisk"
	"sallyport/memory"
	"sallyport/memory/keeper"
)

// A secret in a conversation over 1 MiB costs it the turn that has the secret: at once, or
// when the secret is known later. All other turns are found, and have their mark.
func TestSecretInALongConversation(t *testing.T) {
	r := newRig(t, withText(64<<20))
	ctx := t.Context()
	const file = "conversations.jsonl"
	filler := strings.Repeat("nothing of note ", 60)
	turn := func(text string) string {
		return fmt.Sprintf(`{"session":"s","role":"user","content":%q}`, text) + "\n"
	}
	var b strings.Builder
	for i := range 700 {
		fmt.Fprint(&b, turn(fmt.Sprintf("number%d %s", i, filler)))
	}
	r.writes(file, b.String(), "evil.example")
	must.OK(t, r.Record(ctx, r.o, memory.Cause{Operation: memory.Found}))
	add := func(text string) error {
		return r.AppendTurn(ctx, r.o, keeper.TurnRequest{Role: "user", Content: text, Session: "s"})
	}
	for i := 700; i < 1400; i += 100 {
		for n := range 100 {
			fmt.Fprint(&b, turn(fmt.Sprintf("number%d %s", i+n, filler)))
		}
		r.writes(file, b.String())
		must.OK(t, r.Record(ctx, r.o, memory.Cause{Operation: memory.Found}))
	}
	must.OK(t, add("the marzipan opens it"))
	must.OK(t, add("lastly the mangosteen"))
	if info := value(os.Stat(r.path(file)))(t); info.Size() < 1<<20 {
		t.Fatalf("%d bytes", info.Size())
	}
	if err := add("The password is " + secret); err == nil || !strings.Contains(err.Error(), "quarantine") {
		t.Errorf("a turn with a secret: %v", err)
	}
	finds := func(when string) {
		t.Helper()
		for _, word := range []string{"number3", "number1399", "mangosteen"} {
			list := value(r.Retrieve(ctx, r.o, keeper.Question{Query: word, Type: "turn"}))(t)
			if len(list.Found) == 0 || !strings.Contains(list.Found[0].Text, word) || !strings.Contains(list.Found[0].Untrusted, "evil.example") {
				t.Errorf("%s %s: %d are found, incomplete: %q", when, word, len(list.Found), list.Incomplete)
			}
		}
	}
	finds("at once")
	r.knows(nil, secret, "marzipan")
	must.OK(t, r.Recheck([]memory.Owner{r.o}))
	finds("later")
	if list := value(r.Search(ctx, r.o, keeper.Question{Query: "marzipan"}))(t); len(list.Found) > 0 {
		t.Errorf("the secret is found: %.200s", fmt.Sprint(list.Found))
	}
	if list := value(r.Quarantined(ctx, r.o))(t); len(list) != 2 {
		t.Errorf("in quarantine: %+v", list)
	}
	if v := value(r.Verify(ctx, r.o))(t); len(v.Problems) > 0 || v.Recorded != v.Versions {
		t.Errorf("verified: %+v", v)
	}
	must.OK(t, r.Close())
	if found := ondisk.Find(t, r.dir, secret, "marzipan"); len(found) > 0 {
		t.Errorf("the secret is in %q", found)
	}
}
