package engine_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aymanbagabas/go-udiff"
	"github.com/google/go-cmp/cmp"

	"sallyport/internal/config"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/engine"
	"sallyport/policy/learn"
	"sallyport/policy/replay"
)

// carried is a decision that observe mode has lifted.
func carried(id int, in policy.Input) policy.Recorded {
	r := policy.Recorded{ID: fmt.Sprintf("%08d", id), At: time.Now(), Input: in, Action: policy.Allow, Observed: true, Count: 1}
	if in.Phase == policy.PhaseConnect {
		r.Action = policy.Tunnel
	}
	return r
}

// amended is the policy of a configuration with the proposals.
func amended(t testing.TB, text string, proposals []learn.Proposal) (*engine.Policy, string) {
	t.Helper()
	text, err := learn.Amend(text, proposals)
	must.OK(t, err)
	c, err := config.Parse(filepath.Join(t.TempDir(), "sallyport.yaml"), []byte(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return compiled(t, c.Document), text
}

func TestLearn(t *testing.T) {
	text := `# ours
egress:
- {name: docs, destination: docs.example.com} # known

- name: never # on purpose
  destination: bad.example.com
  action: deny

# credentials are elsewhere
credentials: [{name: key}]
egressAuth:
- {name: api, destination: api.example.com, paths: ["/v1/**"], authRef: key}
`
	p, _ := amended(t, text, nil)
	var run []policy.Recorded
	add := func(sandbox string, in policy.Input) { run = append(run, carried(len(run), by(sandbox, in))) }
	add("a", request("GET", "docs.example.com", "/known"))
	add("a", request("GET", "api.example.com", "/v1/x"))
	for i := range 30 {
		add("a", request("GET", "pkg.example.com", fmt.Sprintf("/simple/package-%c%c/", 'a'+i%26, 'a'+i/26)))
		add("a", request("GET", "pkg.example.com", fmt.Sprintf("/files/%d/x.tar", i)))
	}
	for _, shards := range []string{"/47/82/", "/b1/5c/", "/f5/0a/"} { // a digest's first bytes, as on files.pythonhosted.org
		add("a", request("GET", "files.example.com", "/packages"+shards+strings.Repeat("0a", 30)+"/x.whl"))
	}
	add("a", request("GET", "files.example.com", "/docs/de/index.html"))
	add("a", request("POST", "pkg.example.com", "/upload"))
	add("b", request("GET", "pkg.example.com", "/upload"))
	for i := range 12 {
		add("a", request("GET", "api.github.com", fmt.Sprintf("/repos/owner/name/commits/%040x", i+1<<40)))
	}
	add("a", request("GET", "api.github.com", "/repos/owner/12345678/issues"))
	plain := request("GET", "plain.example.com", "/")
	plain.Protocol, plain.Request.Scheme, plain.Destination.Port = "http", "http", 8080
	add("a", plain)
	add("a", policy.Input{Phase: policy.PhaseConnect, Protocol: "other", Destination: policy.Destination{Host: "db.example.com", Port: 5432}})
	add("a", request("GET", "203.0.113.9", "/"))
	// Rules that are not proposed.
	add("a", request("GET", "10.1.2.3", "/"))
	add("a", request("GET", "api.example.com", "/v2/x"))
	add("a", request("GET", "bad.example.com", "/"))
	add("a", request("GET", "inside.example.com", "/"))
	refused := run[len(run)-1].ID
	denied := carried(9999, request("GET", "denied.example.com", "/"))
	denied.Action = policy.Deny
	run = append(run, denied)

	l, err := learn.Propose(t.Context(), p, each(run), learn.Options{Refused: func(id string) bool { return id == refused }})
	must.OK(t, err)
	var got []string
	for _, p := range l.Proposals {
		r := p.Rule
		got = append(got, fmt.Sprintf("%s %s%v %v %v %v plain=%v: %d", r.Name, r.Action, r.Ports, r.Methods, r.Paths, r.Sandboxes.Names, r.Plain, p.Requests))
	}
	want := []string{
		"learned-203.0.113.9 [] [GET] [/] [a] plain=false: 1",
		"learned-api.github.com [] [GET] [/repos/owner/12345678/issues /repos/owner/name/commits/*] [a] plain=false: 13",
		"learned-db.example.com tunnel[5432] [] [] [a] plain=false: 1",
		"learned-files.example.com [] [GET] [/docs/de/index.html /packages/*/*/*/x.whl] [a] plain=false: 4",
		"learned-pkg.example.com [] [GET] [/files/*/x.tar /simple/*/] [a] plain=false: 60",
		"learned-pkg.example.com-2 [] [GET] [/upload] [b] plain=false: 1",
		"learned-pkg.example.com-3 [] [POST] [/upload] [a] plain=false: 1",
		"learned-plain.example.com [8080] [GET] [/] [a] plain=true: 1",
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Error(diff)
	}
	var flags []string
	for _, f := range l.Flags {
		flags = append(flags, f.Destination+" "+strings.Fields(f.Why)[0])
	}
	if diff := cmp.Diff(flags, []string{"10.1.2.3:443 a", "api.example.com:443 egressAuth", "bad.example.com:443 the", "inside.example.com:443 the"}); diff != "" {
		t.Error(diff)
	}
	if l.Allowed != 2 || l.Flagged != 4 || l.Decisions != l.Allowed+l.Covered+l.Flagged {
		t.Errorf("got %+v", l)
	}
	after, now := amended(t, text, l.Proposals)
	again, err := learn.Propose(t.Context(), after, each(run), learn.Options{Refused: func(id string) bool { return id == refused }})
	if err != nil || len(again.Proposals) > 0 || again.Flagged != 4 {
		t.Errorf("learned twice: %+v, %v", again, err)
	}
	// Everything that was there is there, in its place.
	diff := udiff.Unified("sallyport.yaml", "proposed", text, now)
	for line := range strings.Lines(diff) {
		if strings.HasPrefix(line, "-") && !strings.HasPrefix(line, "---") {
			t.Errorf("taken out: %s", line)
		}
	}
	if !strings.Contains(diff, "@@ -5,6 +5,") || !strings.Contains(now, "  action: deny\n# 1 request, as ") || !strings.HasSuffix(now, text[strings.Index(text, "\n# credentials"):]) {
		t.Errorf("got %s\n%s", diff, now)
	}
}

func TestAmend(t *testing.T) {
	one := []learn.Proposal{{Rule: policy.EgressRule{Name: "x", Destination: "x.example.com"}, Requests: 1, Examples: []string{"id"}}}
	for name, text := range map[string]string{
		"nothing":         "",
		"no list":         "credentials: [{name: key}]\n",
		"no newline":      "egress:\n- destination: a.example.com",
		"empty":           "egress: [] # none yet\ncredentials: []\n",
		"null":            "egress:\ncredentials: []\n",
		"indented":        "egress:\n  # first\n  - destination: a.example.com\n    paths:\n    - /x\n\n# next\ncredentials: []\n",
		"quoted":          "\"egress\":\n- destination: a.example.com\n",
		"document marks":  "---\negress:\n- destination: a.example.com\n...\n",
		"marks, no list":  "---\ncredentials: []\n...\n",
		"a comment's key": "# egress:\negress:\n- destination: a.example.com\n# - x\n",
	} {
		t.Run(name, func(t *testing.T) {
			before, err := config.Parse("a.yaml", []byte(text))
			must.OK(t, err)
			got, err := learn.Amend(text, one)
			must.OK(t, err)
			after, err := config.Parse("a.yaml", []byte(got))
			if err != nil {
				t.Fatalf("%v in\n%s", err, got)
			}
			n := len(before.Egress)
			if len(after.Egress) != n+1 || after.Egress[n].Name != "x" || len(after.Credentials) != len(before.Credentials) {
				t.Errorf("got\n%s", got)
			}
		})
	}
	for _, text := range []string{"egress: [{destination: a.example.com}]\n", "egress: &x\n- destination: a.example.com\n", "egress: {}\n"} {
		if got, err := learn.Amend(text, one); err == nil {
			t.Errorf("got\n%s", got)
		}
	}
}

// Of any traffic a proposal denies nothing, and lets nobody, no host, no method
// and no place of a path in that was not seen.
func TestLearnedPolicyCarriesTheRun(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rounds := 150
	if testing.Short() {
		rounds = 20
	}
	for round := range rounds {
		random := rand.New(rand.NewPCG(seed, uint64(round)))
		base := "egress: [] \n"
		if round%3 == 0 {
			base = "egress:\n- {destination: \"*.example.com\", methods: [GET], paths: [\"/a/**\"]}\n- {destination: raw.example.com, action: tunnel}\n"
		}
		p, _ := amended(t, base, nil)
		var run []policy.Recorded
		for size := 1 + random.IntN(200); len(run) < size; {
			r := carried(len(run), traffic(random))
			// The rules that a person has to decide about are another test's.
			if alone, err := learn.Propose(t.Context(), p, each([]policy.Recorded{r}), learn.Options{}); err != nil {
				t.Fatal(err)
			} else if alone.Flagged == 0 {
				run = append(run, r)
			}
		}
		l, err := learn.Propose(t.Context(), p, each(run), learn.Options{Everyone: round%5 == 0})
		must.OK(t, err)
		if l.Flagged != 0 {
			t.Fatalf("flagged %+v", l.Flags)
		}
		after, text := amended(t, base, l.Proposals)
		r, err := replay.Run(t.Context(), after, each(run))
		if err != nil || r.ByChange[replay.NewlyDenied]+r.ByChange[replay.NewlyAsked] != 0 || len(r.Unfit) != 0 {
			t.Fatalf("round %d: %+v, %v\n%s", round, r, err, text)
		}
		if again, err := learn.Propose(t.Context(), after, each(run), learn.Options{}); err != nil || len(again.Proposals) != 0 {
			t.Fatalf("round %d: learned twice: %+v %v", round, again, err)
		}
		narrow(t, random, p, after, run, round%5 == 0, text)
	}
}

var (
	words   = []string{"a", "b", "api", "v1", "x-y", "100%", "*", "", "z.tar.gz", "ünï", "a b", "q?", "#"}
	methods = []string{"GET", "POST", "PUT", "HEAD"}
)

func traffic(random *rand.Rand) policy.Input {
	hosts := []string{"one.example.com", "github.com", "raw.example.com", "203.0.113.7", "bucket.s3.amazonaws.com", "2001:db9::7"}
	host := hosts[random.IntN(len(hosts))]
	sandbox := []string{"a", "b"}[random.IntN(2)]
	if random.IntN(12) == 0 {
		return by(sandbox, policy.Input{Phase: policy.PhaseConnect, Protocol: "other",
			Destination: policy.Destination{Host: host, Port: uint16(5000 + random.IntN(3))}})
	}
	var segments []string
	slashed := 0 // segments with encoded slashes
	for range 1 + random.IntN(15) {
		s := words[random.IntN(len(words))]
		switch random.IntN(6) {
		case 0:
			s = fmt.Sprint(random.IntN(1 << 30))
		case 1:
			s = fmt.Sprintf("n%c%c", 'a'+random.IntN(26), 'a'+random.IntN(26))
		case 2:
			if random.IntN(20) == 0 {
				s = strings.Repeat("l", random.IntN(1500))
			}
		}
		if s == "" && len(segments) > 0 {
			s = "e"
		}
		if s != "" && slashed < 3 && random.IntN(8) == 0 {
			slashed++
			for range 1 + random.IntN(2) {
				s += "%2F" + []string{"s", "n", fmt.Sprint(random.IntN(1 << 30)), words[random.IntN(5)]}[random.IntN(4)]
			}
		}
		segments = append(segments, s)
	}
	if random.IntN(5) == 0 && segments[0] != "" {
		segments = append(segments, "")
	}
	if segments[0] == "" {
		segments = segments[:1]
	}
	in := request(methods[random.IntN(3)], host, "/"+strings.Join(segments, "/"))
	in.Destination.Port = uint16(443 + random.IntN(2))
	if random.IntN(8) == 0 {
		in.Protocol, in.Request.Scheme, in.Destination.Port = "http", "http", 80
	}
	return by(sandbox, in)
}

// narrow asks for what was not seen.
func narrow(t *testing.T, random *rand.Rand, before, after *engine.Policy, run []policy.Recorded, everyone bool, text string) {
	t.Helper()
	for range 50 {
		in := run[random.IntN(len(run))].Input
		if in.Request == nil {
			continue
		}
		q := *in.Request
		in.Request = &q
		like := func(same func(o policy.Input) bool) bool {
			return slices.ContainsFunc(run, func(r policy.Recorded) bool {
				return r.Input.Request != nil && r.Input.Destination == in.Destination && same(r.Input)
			})
		}
		switch random.IntN(4) {
		case 0:
			in.Destination.Host = "other.example.net"
		case 1:
			q.Method = "DELETE"
		case 2:
			if in.Sandbox.Name = "c"; everyone {
				continue
			}
		case 3:
			// A method that was not seen with this first segment: no glob is wider
			// than what was seen of it, but for what is * from the first on.
			first := func(path string) string { s, _, _ := strings.Cut(path[1:], "/"); return s }
			q.Path = "/never-" + fmt.Sprint(random.IntN(9)) + "x/" + first(q.Path)
			if in.Destination.Host != "github.com" || like(func(o policy.Input) bool {
				return strings.ContainsAny(first(o.Request.Path), "*%?#") || len(first(o.Request.Path)) > 200
			}) {
				continue
			}
		}
		if before.Decide(t.Context(), in).Action != policy.Deny {
			continue
		}
		if d := after.Decide(t.Context(), in); d.Action != policy.Deny {
			t.Fatalf("%+v %+v was not seen, and is allowed by %s:\n%s", in, q, d.Rule, text)
		}
	}
}

// A sandbox in observe mode chooses the paths that are learned from. Where the
// first segments say whose something is, one that no glob can spell does not become
// any owner's.
func TestLearnOfAHostileSandbox(t *testing.T) {
	p, _ := amended(t, "egress: []\n", nil)
	for _, path := range []string{
		"/repos/*/*/contents", "/repos/owner/na*me/x", "/repos/%zz/name", "/repos/owner/what?", "/repos/" + strings.Repeat("o", 300) + "/name",
	} {
		l, err := learn.Propose(t.Context(), p, each([]policy.Recorded{carried(1, by("a", request("GET", "api.github.com", path)))}), learn.Options{})
		must.OK(t, err)
		for _, found := range l.Proposals {
			t.Errorf("%.40q: proposes %v", path, found.Rule.Paths)
		}
		if l.Flagged != 1 {
			t.Errorf("%.40q: %d are flagged", path, l.Flagged)
		}
	}
	// Elsewhere it is one more place with many names.
	l, err := learn.Propose(t.Context(), p, each([]policy.Recorded{carried(1, by("a", request("GET", "pkg.example.com", "/a/b*c")))}), learn.Options{})
	if err != nil || len(l.Proposals) != 1 || l.Proposals[0].Rule.Paths[0] != "/a/*" {
		t.Errorf("got %+v, %v", l, err)
	}
}

// Whatever its methods, hosts and paths are, a proposal is a configuration that can
// be read again, and lets in nothing but what it says.
func TestLearnQuotesWhatIsHostile(t *testing.T) {
	text := "egress: []\n"
	p, _ := amended(t, text, nil)
	var run []policy.Recorded
	for i, path := range []string{"/a: b", "/x #y", "/{a,b}", "/[a]", "/'\"", "/- name: evil", "/&a *b", "/!!str x", "/\u2028x", "/\u202ex", "/é", "/| >", "/~", "/null"} {
		run = append(run, carried(i, by("a", request("GET", "pkg.example.com", path))))
	}
	for i, method := range []string{"*", "!X", "'", "`", "|~", "NULL", "#"} {
		run = append(run, carried(100+i, by("a", request(method, "m.example.com", "/x"))))
	}
	l, err := learn.Propose(t.Context(), p, each(run), learn.Options{})
	must.OK(t, err)
	after, now := amended(t, text, l.Proposals)
	for _, r := range run {
		if d := after.Decide(t.Context(), r.Input); d.Action != policy.Allow && l.Flagged == 0 {
			t.Errorf("%s %q: %s in\n%s", r.Input.Request.Method, r.Input.Request.Path, d.Reason, now)
		}
	}
	if d := after.Decide(t.Context(), by("a", request("DELETE", "m.example.com", "/x"))); d.Action != policy.Deny {
		t.Errorf("a method that nobody used: %+v in\n%s", d, now)
	}
	for _, c := range now {
		if c == '\u2028' || c == '\u202e' || c < ' ' && c != '\n' {
			t.Errorf("%q in what a person reviews:\n%s", c, now)
		}
	}
}
