package keeper_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"sallyport/internal/test/corpus"
	"sallyport/internal/test/must"
	"sallyport/internal/test/ondisk"
	"sallyport/memory"
	"sallyport/memory/keeper"
)

// Of the corpora of secrets and of poison no byte is in a file of the host's outside
// quarantine: of secrets at once, and of poison when it is taken out.
func TestCorporaAreNowhere(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	secrets := corpus.Secrets()
	r.knows(nil, secrets["known"])
	var texts []string
	for kind, text := range secrets {
		texts = append(texts, text)
		r.writes("memories/"+kind+".md", "The harbour opens with this:\n\n"+text+"\n\nand closes.\n")
		if err := r.AppendTurn(ctx, r.o, keeper.TurnRequest{Role: "user", Content: "The harbour: " + text}); err == nil {
			t.Errorf("a turn with a secret of %s stays", kind)
		}
	}
	search := func() {
		t.Helper()
		for _, f := range value(r.Search(ctx, r.o, keeper.Question{Query: "harbour", Limit: 100}))(t).Found {
			t.Errorf("found: %+v", f)
		}
	}
	search()
	if list := value(r.Quarantined(ctx, r.o))(t); len(list) != 2*len(secrets) {
		t.Errorf("%d files of %d are in quarantine", len(list), 2*len(secrets))
	}
	if found := ondisk.Find(t, r.dir, texts...); len(found) > 0 {
		t.Errorf("a secret is in %q", found)
	}

	const innocent = "A harmless line.\n"
	r.writes("memories/innocent.md", innocent)
	must.OK(t, r.Record(ctx, r.o, memory.Cause{Operation: memory.Found}))
	for i, text := range corpus.Poison {
		texts = append(texts, text)
		r.writes(fmt.Sprintf("memories/poison%d.md", i), text, "evil.example")
		must.OK(t, r.Record(ctx, r.o, memory.Cause{Operation: memory.Found}))
	}
	r.writes("memories/innocent.md", innocent+strings.Join(corpus.Poison, "\n"), "evil.example")
	list := value(r.Search(ctx, r.o, keeper.Question{Query: "needle", Limit: 100}))(t).Found
	if len(list) < len(corpus.Poison) {
		t.Errorf("%d texts of poison are found", len(list))
	}
	for _, f := range list {
		if !strings.Contains(f.Untrusted, "evil.example") {
			t.Errorf("poison without a mark: %+v", f)
		}
	}
	value(r.Quarantine(ctx, r.o, keeper.QuarantineRequest{Destination: "evil.example"}))(t)
	if found := value(r.Search(ctx, r.o, keeper.Question{Query: "needle"}))(t).Found; len(found) > 0 {
		t.Errorf("poison is found: %+v", found)
	}
	if v := value(r.Verify(ctx, r.o))(t); len(v.Problems) > 0 {
		t.Errorf("verified: %+v", v)
	}
	must.OK(t, r.Close())
	if found := ondisk.Find(t, r.dir, texts...); len(found) > 0 {
		t.Errorf("a secret or poison is in %q", found)
	}
	if left := string(value(os.ReadFile(r.path("memories/innocent.md")))(t)); left != innocent {
		t.Errorf("of the innocent file is left %q", left)
	}
}
