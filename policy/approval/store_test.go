package approval_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/policy/approval"
)

// desk is a store with a clock that stands until it is set, and what it told.
type desk struct {
	*approval.Store
	t    *testing.T
	path string
	now  time.Time
	fail error  // of Record
	then func() // called by Record

	mu    sync.Mutex
	told  []string
	woken []string
}

func newDesk(t *testing.T) *desk {
	d := &desk{t: t, path: filepath.Join(t.TempDir(), "approvals.json"), now: time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC), then: func() {}}
	d.open()
	return d
}

func (d *desk) open() {
	d.t.Helper()
	say := func(c approval.Change) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.told = append(d.told, string(c.State)+" "+c.Operator.Name)
	}
	s, err := approval.Open(approval.Options{
		Path: d.path, Now: func() time.Time { return d.now }, Tell: say,
		Record: func(c approval.Change) error { say(c); d.then(); return d.fail },
		Wake: func(id string) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.woken = append(d.woken, id)
		},
	})
	must.OK(d.t, err)
	d.Store = s
}

func (d *desk) ask(q approval.Question) approval.Verdict {
	d.t.Helper()
	if q.Timeout == 0 {
		q.Timeout = 5 * time.Minute
	}
	v, err := d.Ask(q)
	must.OK(d.t, err)
	return v
}

func (d *desk) answer(id string, a approval.Answer) {
	d.t.Helper()
	if _, err := d.Answer(id, a, alice); err != nil {
		d.t.Fatal(err)
	}
}

// says wants what was told since it was asked last.
func (d *desk) says(want ...string) {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Equal(d.told, want) {
		d.t.Errorf("told %q, want %q", d.told, want)
	}
	d.told = nil
}

var alice = approval.Operator{Name: "alice", UID: "1000"}

func subject() approval.Subject {
	return approval.Subject{
		Sandbox: "demo", SandboxID: "sb-1", Session: "s-1", Protocol: "tls", Host: "api.example.test", Port: 443,
		Method: "POST", Path: "/repos/x/merge", QueryKeys: []string{"a"}, Query: "q1", Credentials: []string{"key"},
		Rule: "ask", RuleType: "egress", Policy: "r1", Body: "b1", Length: 7,
	}
}

// variants are subjects that differ in one field each, by its name.
func variants(t *testing.T) map[string]approval.Subject {
	all := map[string]approval.Subject{}
	for i := range reflect.TypeFor[approval.Subject]().NumField() {
		s := subject()
		f := reflect.ValueOf(&s).Elem().Field(i)
		switch f.Kind() {
		case reflect.String:
			f.SetString(f.String() + "x")
		case reflect.Uint16:
			f.SetUint(f.Uint() + 1)
		case reflect.Int64:
			f.SetInt(f.Int() + 1)
		case reflect.Slice:
			f.Set(reflect.ValueOf([]string{"key", "other"}))
		default:
			t.Fatalf("a field of kind %v", f.Kind())
		}
		all[reflect.TypeFor[approval.Subject]().Field(i).Name] = s
	}
	return all
}

// An approval is bound to every field but those that are the same by another name: a request
// that differs in any other has not been approved.
func TestBound(t *testing.T) {
	// A sandbox's name and owner go with its ID, and the keys with the query.
	free := []string{"Sandbox", "Owner", "QueryKeys"}
	// A longer one is for a path however it is spelled.
	for _, tt := range []struct {
		name   string
		answer approval.Answer
		free   []string
	}{
		{"once", approval.Answer{Approve: true}, free},
		{"session", approval.Answer{Approve: true, Span: approval.Session}, append([]string{"Target", "Query", "Policy", "Body", "Length"}, free...)},
		{"period", approval.Answer{Approve: true, Span: approval.Period, For: time.Hour}, append([]string{"Target", "Query", "Policy", "Body", "Length", "Session"}, free...)},
		{"pattern", approval.Answer{Approve: true, Span: approval.Period, For: time.Hour, Pattern: approval.Pattern{Method: "*", Path: "/repos/**"}},
			append([]string{"Target", "Query", "Policy", "Body", "Length", "Session", "Method", "Path"}, free...)},
	} {
		for field, s := range variants(t) {
			t.Run(tt.name+"/"+field, func(t *testing.T) {
				d := newDesk(t)
				first := d.ask(approval.Question{Subject: subject()})
				if first.State != approval.Pending {
					t.Fatalf("it is %+v", first)
				}
				d.answer(first.ID, tt.answer)
				want := approval.Pending
				if slices.Contains(tt.free, field) {
					want = approval.Approved
				}
				if v := d.ask(approval.Question{Subject: s}); v.State != want {
					t.Errorf("another %s: %+v, want %s", field, v, want)
				}
			})
		}
	}
}

func TestOnceIsUsedUp(t *testing.T) {
	d := newDesk(t)
	id := d.ask(approval.Question{Subject: subject()}).ID
	if again := d.ask(approval.Question{Subject: subject()}); again.ID != id || again.State != approval.Pending {
		t.Errorf("asked again: %+v", again)
	}
	d.answer(id, approval.Answer{Approve: true})
	d.says("pending ", "approved alice")
	d.open() // a restart
	var granted atomic.Int32
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if v, err := d.Ask(approval.Question{Subject: subject(), Timeout: time.Minute}); err == nil && v.State == approval.Approved {
				if v.ID != id || v.Operator != alice {
					t.Errorf("granted by %+v", v)
				}
				granted.Add(1)
			}
		})
	}
	wg.Wait()
	if n := granted.Load(); n != 1 {
		t.Errorf("%d of 16 took it, want one", n)
	}
	d.open()
	if v := d.ask(approval.Question{Subject: subject()}); v.State != approval.Pending {
		t.Errorf("after it was used: %+v", v)
	}
}

// An approval for a request on an open connection is that request's, and nobody's when it has
// gone.
func TestHeld(t *testing.T) {
	d := newDesk(t)
	q := approval.Question{Subject: subject(), Held: true}
	a, b := d.ask(q), d.ask(q)
	if a.ID == b.ID {
		t.Fatal("two that wait are one")
	}
	d.answer(a.ID, approval.Answer{Approve: true})
	if !slices.Equal(d.woken, []string{a.ID}) {
		t.Errorf("woken: %v", d.woken)
	}
	with := func(id string) approval.Question { q := q; q.ID = id; return q }
	if v := d.ask(with(b.ID)); v.State != approval.Pending {
		t.Errorf("the other: %+v", v)
	}
	if v := d.ask(approval.Question{Subject: subject()}); v.State != approval.Pending {
		t.Errorf("a third: %+v", v)
	}
	other := with(a.ID)
	other.Subject.Body = "b2"
	if v := d.ask(other); v.State == approval.Approved {
		t.Errorf("another body under its id: %+v", v)
	}
	if v := d.ask(with(a.ID)); v.State != approval.Approved {
		t.Errorf("itself: %+v", v)
	}
	if v := d.ask(with(a.ID)); v.State != approval.Expired {
		t.Errorf("itself again: %+v", v)
	}
	d.answer(b.ID, approval.Answer{Approve: true})
	d.Withdraw("sb-1", b.ID)
	if v := d.ask(with(b.ID)); v.State == approval.Approved {
		t.Errorf("after it had gone: %+v", v)
	}
}

// One answer for the session lets go what it covers, and that is on record too.
func TestCoversOthersThatWait(t *testing.T) {
	d := newDesk(t)
	q := approval.Question{Subject: subject(), Held: true}
	a, b := d.ask(q), d.ask(q)
	d.answer(a.ID, approval.Answer{Approve: true, Span: approval.Session, Count: 2})
	slices.Sort(d.woken)
	if want := []string{a.ID, b.ID}; !slices.Equal(d.woken, want) {
		t.Errorf("woken: %v, want %v", d.woken, want)
	}
	for _, id := range []string{a.ID, b.ID} {
		q.ID = id
		if v := d.ask(q); v.State != approval.Approved || v.ID != a.ID {
			t.Errorf("%+v", v)
		}
	}
	d.says("pending ", "pending ", "approved alice", "approved alice")
	if list, grants, _ := d.List(); len(list)+len(grants) != 0 {
		t.Errorf("left: %v, %v", list, grants)
	}
}

func TestTime(t *testing.T) {
	d := newDesk(t)
	held := d.ask(approval.Question{Subject: subject(), Held: true})
	d.now = d.now.Add(5 * time.Minute)
	if _, err := d.Answer(held.ID, approval.Answer{Approve: true}, alice); !errors.Is(err, approval.ErrAnswered) {
		t.Errorf("answered too late: %v", err)
	}
	if v := d.ask(approval.Question{Subject: subject(), Held: true, ID: held.ID}); v.State != approval.Expired {
		t.Errorf("after its time: %+v", v)
	}
	d.says("pending ", "expired ")
	id := d.ask(approval.Question{Subject: subject()}).ID
	d.answer(id, approval.Answer{Approve: true, Span: approval.Period, For: time.Hour})
	d.now = d.now.Add(time.Hour - time.Second)
	if v := d.ask(approval.Question{Subject: subject()}); v.State != approval.Approved {
		t.Errorf("within the hour: %+v", v)
	}
	d.now = d.now.Add(time.Second)
	if v := d.ask(approval.Question{Subject: subject()}); v.State != approval.Pending {
		t.Errorf("after the hour: %+v", v)
	}
}

func TestNo(t *testing.T) {
	d := newDesk(t)
	id := d.ask(approval.Question{Subject: subject()}).ID
	d.answer(id, approval.Answer{Note: "not on a Friday"})
	for _, held := range []bool{false, true} {
		if v := d.ask(approval.Question{Subject: subject(), Held: held}); v.State != approval.Denied || v.Reason != "not on a Friday" || v.Operator != alice {
			t.Errorf("asked again: %+v", v)
		}
	}
	d.now = d.now.Add(5 * time.Minute)
	if v := d.ask(approval.Question{Subject: subject()}); v.State != approval.Pending || v.ID == id {
		t.Errorf("asked much later: %+v", v)
	}
}

// A grant that is taken back, or whose sandbox is gone, covers nothing.
func TestTakenBack(t *testing.T) {
	for name, end := range map[string]func(*desk, string){
		"denied":    func(d *desk, id string) { d.answer(id, approval.Answer{}) },
		"forgotten": func(d *desk, id string) { _ = d.Forget("sb-1") },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			id := d.ask(approval.Question{Subject: subject()}).ID
			d.answer(id, approval.Answer{Approve: true, Span: approval.Session})
			end(d, id)
			d.open()
			if v := d.ask(approval.Question{Subject: subject()}); v.State != approval.Pending {
				t.Errorf("%+v", v)
			}
		})
	}
}

// A sandbox that is forgotten while an answer is recorded leaves nothing to the next one with its ID:
// no grant, and no denial.
func TestForgottenAsItIsAnswered(t *testing.T) {
	for name, a := range map[string]approval.Answer{"yes": {Approve: true, Span: approval.Period, For: time.Hour}, "no": {}} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			id := d.ask(approval.Question{Subject: subject()}).ID
			d.then = func() { must.OK(t, d.Forget("sb-1")) }
			if _, err := d.Answer(id, a, alice); !errors.Is(err, approval.ErrUnknown) {
				t.Errorf("the answer: %v, want %v", err, approval.ErrUnknown)
			}
			if v := d.ask(approval.Question{Subject: subject()}); v.State != approval.Pending || v.ID == id {
				t.Errorf("the next one with the ID: %+v", v)
			}
		})
	}
}

func TestBadAnswers(t *testing.T) {
	large := subject()
	large.Body, large.Length = "", -1
	elsewhere := subject()
	elsewhere.Session = ""
	raw := approval.Subject{SandboxID: "sb-1", Session: "s-1", Protocol: "other", Host: "db.example.test", Port: 5432}
	for _, tt := range []struct {
		name    string
		subject approval.Subject
		answer  approval.Answer
	}{
		{"once for a body that is not bound", large, approval.Answer{Approve: true}},
		{"once with a count", subject(), approval.Answer{Approve: true, Count: 2}},
		{"once with a pattern", subject(), approval.Answer{Approve: true, Pattern: approval.Pattern{Path: "/**"}}},
		{"a session that is none", elsewhere, approval.Answer{Approve: true, Span: approval.Session}},
		{"a period without length", subject(), approval.Answer{Approve: true, Span: approval.Period}},
		{"a period without end", subject(), approval.Answer{Approve: true, Span: approval.Period, For: 1 << 60}},
		{"another span", subject(), approval.Answer{Approve: true, Span: "ever"}},
		{"a path elsewhere", subject(), approval.Answer{Approve: true, Span: approval.Session, Pattern: approval.Pattern{Path: "/other/**"}}},
		{"another method", subject(), approval.Answer{Approve: true, Span: approval.Session, Pattern: approval.Pattern{Method: "GET"}}},
		{"a path for a connection", raw, approval.Answer{Approve: true, Span: approval.Session, Pattern: approval.Pattern{Path: "/**"}}},
		{"a no for the session", subject(), approval.Answer{Span: approval.Session}},
		{"a long note", subject(), approval.Answer{Note: strings.Repeat("x", 2000)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newDesk(t)
			q := approval.Question{Subject: tt.subject}
			id := d.ask(q).ID
			if _, err := d.Answer(id, tt.answer, alice); !errors.Is(err, approval.ErrAnswer) {
				t.Errorf("it is %v", err)
			}
			if v := d.ask(q); v.State != approval.Pending {
				t.Errorf("afterwards: %+v", v)
			}
		})
	}
	d := newDesk(t)
	id := d.ask(approval.Question{Subject: subject()}).ID
	if _, err := d.Answer(id, approval.Answer{Approve: true}, approval.Operator{}); !errors.Is(err, approval.ErrAnswer) {
		t.Errorf("by nobody: %v", err)
	}
	if _, err := d.Answer("x", approval.Answer{Approve: true}, alice); !errors.Is(err, approval.ErrUnknown) {
		t.Errorf("to nothing: %v", err)
	}
	// A change that cannot be recorded does not happen.
	d.fail = errors.New("disk full")
	if _, err := d.Answer(id, approval.Answer{Approve: true}, alice); !errors.Is(err, d.fail) {
		t.Errorf("without a record: %v", err)
	}
	d.fail = nil
	if v := d.ask(approval.Question{Subject: subject()}); v.State != approval.Pending {
		t.Errorf("afterwards: %+v", v)
	}
	d.answer(id, approval.Answer{Approve: true})
	if _, err := d.Answer(id, approval.Answer{Approve: true}, alice); !errors.Is(err, approval.ErrAnswered) {
		t.Errorf("twice: %v", err)
	}
}

// A sandbox that asks without end is refused; the others are not.
func TestFull(t *testing.T) {
	d := newDesk(t)
	ask := func(sandbox string, i int) approval.Verdict {
		s := subject()
		s.SandboxID, s.Body = sandbox, fmt.Sprint(i)
		return d.ask(approval.Question{Subject: s, Held: true})
	}
	for i := range approval.MaxPending {
		if v := ask("sb-1", i); v.State != approval.Pending {
			t.Fatalf("%d: %+v", i, v)
		}
	}
	if v := ask("sb-1", -1); v.State != approval.Refused || v.Reason == "" {
		t.Errorf("one more: %+v", v)
	}
	if v := ask("sb-2", 0); v.State != approval.Pending {
		t.Errorf("another sandbox: %+v", v)
	}
	refused := 0
	for i := range 200 { // each withdrawn at once, as of a client that goes away
		v := ask("sb-3", i)
		if v.State == approval.Refused {
			refused++
		}
		d.Withdraw("sb-3", v.ID)
	}
	if refused < 100 {
		t.Errorf("%d of 200 at once were refused", refused)
	}
	d.now = d.now.Add(2 * time.Second)
	if v := ask("sb-3", 0); v.State != approval.Pending {
		t.Errorf("after a while: %+v", v)
	}
	d.WithdrawHeld()
	if list, _, _ := d.List(); len(list) != 0 {
		t.Errorf("%d wait after all have gone", len(list))
	}
}

func TestChanged(t *testing.T) {
	d := newDesk(t)
	_, _, changed := d.List()
	select {
	case <-changed:
		t.Error("before anything")
	default:
	}
	id := d.ask(approval.Question{Subject: subject()}).ID
	<-changed
	list, _, changed := d.List()
	if len(list) != 1 || list[0].ID != id {
		t.Errorf("listed: %v", list)
	}
	d.answer(id, approval.Answer{Approve: true})
	<-changed
}

// Whatever is asked and answered in whatever order, no grant is used more often
// than its count, and nothing is granted that nobody has answered for.
func TestNeverMore(t *testing.T) {
	for seed := range uint64(30) {
		d, random := newDesk(t), rand.New(rand.NewPCG(seed, 1))
		allowed, used := map[string]int{}, map[string]int{}
		var open []string
		for range 300 {
			switch random.IntN(6) {
			case 0:
				if len(open) > 0 {
					id := open[random.IntN(len(open))]
					a := approval.Answer{Approve: random.IntN(4) > 0}
					n := 1
					if a.Approve && random.IntN(2) == 0 {
						n = 1 + random.IntN(3)
						a.Span, a.For, a.Count = approval.Period, time.Duration(1+random.IntN(600))*time.Second, n
						a.Pattern.Path = []string{"", "/repos/*", "/**"}[random.IntN(3)]
					}
					if _, err := d.Answer(id, a, alice); err == nil && a.Approve {
						allowed[id] = n
					} else if err == nil {
						allowed[id] = 0 // taken back
						used[id] = 0
					}
				}
			case 1:
				d.now = d.now.Add(time.Duration(random.IntN(90)) * time.Second)
			case 2:
				d.open()
			default:
				s := subject()
				s.Path, s.Body = fmt.Sprintf("/repos/%d", random.IntN(2)), fmt.Sprint(random.IntN(2))
				switch v := d.ask(approval.Question{Subject: s}); v.State {
				case approval.Pending:
					if !slices.Contains(open, v.ID) {
						open = append(open, v.ID)
					}
				case approval.Approved:
					if used[v.ID]++; used[v.ID] > allowed[v.ID] {
						t.Fatalf("seed %d: %s was used %d times, approved for %d", seed, v.ID, used[v.ID], allowed[v.ID])
					}
				}
			}
		}
	}
}

// Sandboxes of one owner that together have all questions which they get leave some to
// their own neighbours, and to every other owner's.
func TestFullOfOthers(t *testing.T) {
	d := newDesk(t)
	ask := func(sandbox, owner string, i int) approval.State {
		s := subject()
		s.SandboxID, s.Owner, s.Body = sandbox, owner, fmt.Sprint(i)
		return d.ask(approval.Question{Subject: s, Held: true}).State
	}
	for sb := range 40 {
		for i := range approval.MaxPending {
			_ = ask(fmt.Sprint("greedy-", sb), "acme", i)
		}
	}
	for _, tt := range []struct {
		owner string
		n     int
	}{{"acme", 2}, {"beta", approval.MaxPending}, {"", approval.MaxPending}} {
		for i := range tt.n {
			if got := ask("late-"+tt.owner, tt.owner, i); got != approval.Pending {
				t.Fatalf("of owner %q, question %d: %v", tt.owner, i, got)
			}
		}
	}
}
