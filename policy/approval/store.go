package approval

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"golang.org/x/time/rate"

	"sallyport/internal/periodic"
)

// Options of a Store.
type Options struct {
	// Path is the file of the grants; its folder must exist. Needed.
	Path string
	// Record returns when a change is on record; one that cannot be recorded does
	// not happen. It is called for what operators do. Default: nothing is.
	Record func(Change) error
	// Tell is Record for what happens anyway, and does not block.
	Tell func(Change)
	// Wake tells whoever holds a request that it is time to ask again.
	Wake func(id string)
	// Now is the time. Default: time.Now.
	Now func() time.Time
}

// Store is safe for concurrent use. One process at a time may have its file open.
type Store struct {
	o Options

	mu      sync.Mutex
	waiting map[string]*waiting // by id
	grants  []*Grant            // by when they were given
	asks    map[string]*rate.Limiter
	changed chan struct{} // closed with the next change
}

// waiting is a request and, for a while, what became of it.
type waiting struct {
	Request
	operator Operator
	note     string
	busy     bool // an answer is being recorded
}

// Open reads the grants that a Store has kept.
func Open(o Options) (*Store, error) {
	if o.Record == nil {
		o.Record = func(Change) error { return nil }
	}
	if o.Tell == nil {
		o.Tell = func(Change) {}
	}
	if o.Wake == nil {
		o.Wake = func(string) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	grants, err := read(o.Path)
	if err != nil {
		return nil, fmt.Errorf("what operators have approved: %w: mend it or remove it, which takes every approval back", err)
	}
	return &Store{o: o, waiting: map[string]*waiting{}, grants: grants, asks: map[string]*rate.Limiter{}, changed: make(chan struct{})}, nil
}

// Ask takes a use of a grant that covers what is asked, says what became of an
// earlier question, or lists it. A caller that is told that it is pending asks again,
// with the id, when woken or when its time is over.
func (s *Store) Ask(q Question) (Verdict, error) {
	q.Timeout = min(max(q.Timeout, MinTimeout), MaxTimeout)
	s.mu.Lock()
	told := s.sweep()
	v, more, err := s.ask(q)
	s.mu.Unlock()
	if more != nil {
		told = append(told, *more)
	}
	s.tell(told)
	return v, err
}

func (s *Store) ask(q Question) (Verdict, *Change, error) {
	now := s.o.Now()
	if g := s.covering(q); g != nil {
		if err := s.take(g); err != nil {
			return Verdict{State: Refused, Reason: "the approval could not be used"}, nil, err
		}
		v := Verdict{State: Approved, ID: g.ID, Operator: g.Operator, Span: g.Span}
		if w := s.earlier(q); w != nil && w.State == Pending && !w.busy { // it was given for another
			delete(s.waiting, w.ID)
			s.change()
			w.State = Approved
			return v, &Change{State: Approved, Request: w.Request, Operator: g.Operator, By: g.ID}, nil
		}
		return v, nil, nil
	}
	if q.Peek {
		return Verdict{}, nil, nil
	}
	if w := s.earlier(q); w != nil {
		v := Verdict{State: w.State, ID: w.ID, Expires: w.Expires, Operator: w.operator, Reason: w.note}
		if w.State == Expired {
			delete(s.waiting, w.ID)
		}
		return v, nil, nil
	}
	if q.ID != "" { // its approval was used up, or it was withdrawn
		return Verdict{State: Expired, ID: q.ID}, nil, nil
	}
	if why := s.full(q.Subject, now); why != "" {
		return Verdict{State: Refused, Reason: why}, nil, nil
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Verdict{State: Refused, Reason: "it could not be asked for"}, nil, err
	}
	w := &waiting{Request: Request{
		ID: id.String(), Subject: q.Subject, Reason: q.Reason, Asked: now, Expires: now.Add(q.Timeout), Held: q.Held, State: Pending,
	}}
	s.waiting[w.ID] = w
	s.change()
	return Verdict{State: Pending, ID: w.ID, Expires: w.Expires}, &Change{State: Pending, Request: w.Request}, nil
}

// earlier finds the question that q repeats. A request that is not held is known by its
// subject, and a no stands for its time however it is asked again.
func (s *Store) earlier(q Question) *waiting {
	if w := s.waiting[q.ID]; w != nil && w.Subject.SandboxID == q.Subject.SandboxID {
		if !w.Subject.same(q.Subject) {
			return nil
		}
		return w
	}
	if q.ID != "" {
		return nil
	}
	for _, w := range s.waiting {
		if w.Subject.same(q.Subject) && (w.State == Denied || w.State == Pending && !w.Held && !q.Held) {
			return w
		}
	}
	return nil
}

// full says why nothing more can be listed for a sandbox.
func (s *Store) full(q Subject, now time.Time) string {
	own, owners, all := 0, 0, 0
	sandbox := q.SandboxID
	for _, w := range s.waiting {
		all++
		if w.Subject.Owner == q.Owner {
			owners++
		}
		if w.Subject.SandboxID == sandbox {
			own++
		}
	}
	if own >= minPending && (own >= MaxPending || owners >= maxPendingAll-all) {
		return "too many requests wait for approval already"
	}
	for id, l := range s.asks { // who has not asked for long is as good as new
		if l.TokensAt(now) >= askBurst {
			delete(s.asks, id)
		}
	}
	l := s.asks[sandbox]
	if l == nil {
		l = rate.NewLimiter(rate.Every(askEvery), askBurst)
		s.asks[sandbox] = l
	}
	if !l.AllowN(now, 1) {
		return "approval was asked for too often"
	}
	return ""
}

// Withdraw takes a pending question of a sandbox back.
func (s *Store) Withdraw(sandbox, id string) {
	s.drop(func(w *waiting) bool { return !w.busy && w.ID == id && w.Subject.SandboxID == sandbox })
	s.mu.Lock()
	defer s.mu.Unlock()
	// One that cannot be dropped ends by itself: nobody else can use it.
	_ = s.keep(func(g *Grant) bool { return g.ID != id || g.Span != Once || g.Subject.SandboxID != sandbox })
}

// WithdrawHeld takes back all that somebody held, who is gone.
func (s *Store) WithdrawHeld() { s.drop(func(w *waiting) bool { return !w.busy && w.Held }) }

// Forget drops all of a sandbox that is gone, grants too: the next one with its ID, as a pod's
// has, begins with none. An answer that is being recorded meanwhile fails.
func (s *Store) Forget(sandbox string) error {
	s.drop(func(w *waiting) bool { return w.Subject.SandboxID == sandbox })
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.asks, sandbox)
	return s.keep(func(g *Grant) bool { return g.Subject.SandboxID != sandbox })
}

func (s *Store) drop(which func(*waiting) bool) {
	s.mu.Lock()
	told := s.sweep()
	for id, w := range s.waiting {
		if which(w) {
			delete(s.waiting, id)
			if w.State == Pending {
				w.State = Withdrawn
				told = append(told, Change{State: Withdrawn, Request: w.Request})
			}
		}
	}
	if len(told) > 0 {
		s.change()
	}
	s.mu.Unlock()
	s.tell(told)
}

// Answer gives an operator's answer to a pending request, or, with a no, takes a
// grant back. It is recorded first.
func (s *Store) Answer(id string, a Answer, by Operator) (Request, error) {
	if by.Name == "" {
		return Request{}, fmt.Errorf("%w: nobody gives it", ErrAnswer)
	}
	if len(a.Note) > maxNote || !utf8.ValidString(a.Note) {
		return Request{}, fmt.Errorf("%w: a note is up to %d bytes of UTF-8", ErrAnswer, maxNote)
	}
	s.mu.Lock()
	told := s.sweep()
	w := s.waiting[id]
	var g *Grant
	var err error
	switch {
	case w == nil || w.State == Approved:
		i := slices.IndexFunc(s.grants, func(g *Grant) bool { return g.ID == id })
		if i < 0 || a.Approve {
			err = fmt.Errorf("%w: %.64q", ErrUnknown, id)
			if i >= 0 {
				err = fmt.Errorf("%w: %.64q", ErrAnswered, id)
			}
			break
		}
		revoked := s.grants[i]
		s.mu.Unlock()
		s.tell(told)
		return s.revoke(revoked, a, by)
	case w.busy || w.State != Pending:
		err = fmt.Errorf("%w: %.64q", ErrAnswered, id)
	case a.Approve:
		g, err = s.grant(w, a, by)
	case a != Answer{Note: a.Note}:
		err = fmt.Errorf("%w: a no is for this request alone", ErrAnswer)
	}
	if err != nil {
		s.mu.Unlock()
		s.tell(told)
		return Request{}, err
	}
	w.busy = true // the clock stands still for it meanwhile
	r := w.Request
	s.mu.Unlock()
	s.tell(told)
	r.State = Denied
	if a.Approve {
		r.State = Approved
	}
	if g != nil {
		a.Pattern = g.Pattern
	}
	rerr := s.o.Record(Change{State: r.State, Request: r, Answer: &a, Operator: by})
	s.mu.Lock()
	w.busy = false
	if rerr == nil && s.waiting[id] != w {
		rerr = fmt.Errorf("%w: %.64q: its sandbox is gone", ErrUnknown, id)
	}
	if rerr == nil && g != nil {
		s.grants = append(s.grants, g)
		if rerr = s.write(s.grants); rerr != nil {
			s.grants = s.grants[:len(s.grants)-1]
		}
	}
	if rerr == nil {
		w.State, w.operator, w.note = r.State, by, a.Note
		if a.Approve {
			delete(s.waiting, id)
		}
		// A no stands for as long as the request could have waited.
		w.Expires = s.o.Now().Add(w.Expires.Sub(w.Asked))
		s.change()
	}
	wake := []string{id}
	if g != nil && g.Span != Once {
		for _, w := range s.waiting {
			if w.Held && w.State == Pending && g.covers(w.Subject) {
				wake = append(wake, w.ID)
			}
		}
	}
	s.mu.Unlock()
	if rerr != nil {
		return Request{}, fmt.Errorf("the answer could not be kept: %w", rerr)
	}
	for _, id := range wake {
		s.o.Wake(id)
	}
	return r, nil
}

// grant makes what a yes gives. s.mu is held.
func (s *Store) grant(w *waiting, a Answer, by Operator) (*Grant, error) {
	now := s.o.Now()
	g := &Grant{ID: w.ID, Subject: w.Subject, Span: a.Span, Left: a.Count, Operator: by, Note: a.Note, Given: now, Held: w.Held}
	switch a.Span {
	case Once:
		if a.Count > 1 || a.For != 0 || a.Pattern != (Pattern{}) {
			return nil, fmt.Errorf("%w: once is for one request as it is: a count, a period or a pattern needs for: session or a time", ErrAnswer)
		}
		if !w.Subject.bound() {
			return nil, fmt.Errorf("%w: the request's body was not read to its end, so that it cannot be approved once: approve it for the session or a time, or raise approvals.body", ErrAnswer)
		}
		// Long enough for whoever polls.
		g.Left, g.Until = 1, now.Add(max(w.Expires.Sub(w.Asked), time.Minute))
	case Session:
		if w.Subject.Session == "" {
			return nil, fmt.Errorf("%w: a user of the explicit proxy has no session: approve it for a time", ErrAnswer)
		}
		if a.For != 0 {
			return nil, fmt.Errorf("%w: for the session or for a time, not both", ErrAnswer)
		}
		g.Until = now.Add(MaxPeriod)
	case Period:
		if a.For < time.Second || a.For > MaxPeriod {
			return nil, fmt.Errorf("%w: a period is from 1s to %v", ErrAnswer, MaxPeriod)
		}
		g.Until = now.Add(a.For)
	default:
		return nil, fmt.Errorf("%w: %.32q is neither once, session nor period", ErrAnswer, a.Span)
	}
	if a.Count < 0 || a.Count > maxCount {
		return nil, fmt.Errorf("%w: a count is from 1 to %d", ErrAnswer, maxCount)
	}
	if a.Span != Once {
		var err error
		if g.Pattern, err = a.Pattern.within(w.Subject); err != nil {
			return nil, err
		}
	}
	if err := g.compile(); err != nil {
		return nil, err
	}
	own := 0
	for _, g := range s.grants {
		if g.Subject.SandboxID == w.Subject.SandboxID {
			own++
		}
	}
	if own >= maxGrants || len(s.grants) >= maxGrantsAll {
		return nil, ErrFull
	}
	return g, nil
}

// revoke takes a grant back; requests that it has let go on their way are.
func (s *Store) revoke(g *Grant, a Answer, by Operator) (Request, error) {
	r := Request{ID: g.ID, Subject: g.Subject, Asked: g.Given, Expires: g.Until, State: Denied}
	if err := s.o.Record(Change{State: Denied, Request: r, Answer: &a, Operator: by, Ended: true}); err != nil {
		return Request{}, fmt.Errorf("the answer could not be kept: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.keep(func(have *Grant) bool { return have.ID != g.ID }); err != nil {
		return Request{}, fmt.Errorf("the answer could not be kept: %w", err)
	}
	s.change()
	return r, nil
}

// sweep ends what has had its time. s.mu is held; what it returns is told.
func (s *Store) sweep() (told []Change) {
	now := s.o.Now()
	for id, w := range s.waiting {
		if w.busy || now.Before(w.Expires) {
			continue
		}
		if w.State != Pending {
			delete(s.waiting, id)
			continue
		}
		told = append(told, Change{State: Expired, Request: w.Request})
		told[len(told)-1].Request.State = Expired
		if w.State = Expired; !w.Held {
			delete(s.waiting, id)
			continue
		}
		w.Expires = now.Add(time.Minute) // for who holds it to hear of
	}
	if slices.ContainsFunc(s.grants, func(g *Grant) bool { return !now.Before(g.Until) }) {
		// An old grant on disk is as good as none: it is looked at the same way.
		s.grants = slices.DeleteFunc(slices.Clone(s.grants), func(g *Grant) bool { return !now.Before(g.Until) })
	}
	if len(told) > 0 {
		s.change()
	}
	return told
}

func (s *Store) tell(told []Change) {
	for _, c := range told {
		s.o.Tell(c)
		if c.State != Pending && c.Request.Held {
			s.o.Wake(c.Request.ID)
		}
	}
}

// Run ends what has had its time, soon after, until ctx is done.
func (s *Store) Run(ctx context.Context) error {
	return periodic.Run(ctx, time.Second, func(time.Time) {
		s.mu.Lock()
		told := s.sweep()
		s.mu.Unlock()
		s.tell(told)
	})
}

// List is what waits and what is granted, oldest first, and a channel that is
// closed when that has changed.
func (s *Store) List() (requests []Request, grants []Grant, changed <-chan struct{}) {
	s.mu.Lock()
	told := s.sweep()
	for _, w := range slices.SortedFunc(maps.Values(s.waiting), func(a, b *waiting) int {
		return cmp.Or(a.Asked.Compare(b.Asked), cmp.Compare(a.ID, b.ID))
	}) {
		if w.State == Pending {
			requests = append(requests, w.Request)
		}
	}
	for _, g := range s.grants {
		grants = append(grants, *g)
	}
	changed = s.changed
	s.mu.Unlock()
	s.tell(told)
	return requests, grants, changed
}

// change tells who lists. s.mu is held.
func (s *Store) change() {
	close(s.changed)
	s.changed = make(chan struct{})
}
