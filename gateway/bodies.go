package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/gateway/form"
	"sallyport/policy"
)

// Bounds of the bodies that are held while the policy judges them or an operator
// is asked about them, and of large heads while their messages are under way, in bytes.
const (
	maxRoom      = 128 << 20 // of all sandboxes
	maxRoomOfOne = 32 << 20  // of a sandbox
	firstPiece   = 8 << 10   // what a body begins with, whatever length it claims
)

// viewer is a policy that has to see some bodies. A Decider that is none is asked
// without.
type viewer interface {
	Need(policy.Input) policy.Need
}

// room counts the bodies and large heads that are held, from the first byte that is
// read to the exchange's end.
type room struct {
	metrics *metrics
	judging chan struct{} // has one element for each body in Rego's form, which is large

	mu    sync.Mutex
	all   int64
	ofOne map[string]int64 // by sandbox ID
}

func newRoom(m *metrics) *room {
	return &room{metrics: m, judging: make(chan struct{}, max(2, runtime.GOMAXPROCS(0))), ofOne: make(map[string]int64)}
}

var (
	errNoRoomOfOne = errors.New("the sandbox has too many request bodies under way that the policy or an operator has to see, or large heads")
	errNoRoom      = errors.New("too many request bodies are under way that the policy or an operator has to see, or large heads")
)

// headBudget is what the large heads of one exchange, or of one request's connection, hold of
// a room. It is an h1.Budget.
type headBudget struct {
	of  *room
	id  string          // of the sandbox; none: nobody who is known yet
	ctx context.Context // of a connection, whose client may say later who it is; nil: id is known

	mu   sync.Mutex
	room int64 // that has been made
}

// Take implements h1.Budget.
func (b *headBudget) Take(n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ctx != nil && b.room == 0 {
		if s := sessionOf(b.ctx); s != nil {
			b.id = s.identity.ID
		}
	}
	err := b.of.take(b.id, n)
	if err == nil {
		b.room += n
	}
	return err
}

// Release implements h1.Budget.
func (b *headBudget) Release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.of.give(b.id, b.room)
	b.room = 0
}

// take makes room for n bytes of a sandbox's.
func (r *room) take(id string, n int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	switch {
	case r.ofOne[id]+n > maxRoomOfOne:
		err = errNoRoomOfOne
	// Of what others leave a sandbox has half: so a few that hold what they have for
	// long, for they sleep, or their upstreams do, leave something to everybody.
	case r.ofOne[id]+n > (maxRoom-(r.all-r.ofOne[id]))/2:
		err = errNoRoom
	}
	if err != nil {
		r.metrics.crowded.Inc()
		return err
	}
	r.metrics.bodies.Add(float64(n))
	r.all += n
	r.ofOne[id] += n
	return nil
}

// give takes it back.
func (r *room) give(id string, n int64) {
	if n == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.metrics.bodies.Sub(float64(n))
	r.all -= n
	if r.ofOne[id] -= n; r.ofOne[id] == 0 {
		delete(r.ofOne, id)
	}
}

// kept is a request's body in memory. What the policy has judged are the very
// bytes that leave.
type kept struct {
	of   *room
	id   string        // of the sandbox
	sent *atomic.Int64 // what an upstream has been given

	mu   sync.Mutex // a transport can go on reading when the exchange has ended
	text []byte
	room int64 // that has been made
	at   int
	rest io.ReadCloser // what has not been read of a body that is too long
	gone bool
}

func (k *kept) Read(p []byte) (int, error) {
	k.mu.Lock()
	switch {
	case k.gone:
		k.mu.Unlock()
		return 0, http.ErrBodyReadAfterClose
	case k.at == len(k.text) && k.rest != nil:
		k.mu.Unlock() // it may take long
		return k.rest.Read(p)
	}
	defer k.mu.Unlock()
	if k.at == len(k.text) {
		return 0, io.EOF
	}
	n := copy(p, k.text[k.at:])
	k.at += n
	k.sent.Add(int64(n))
	return n, nil
}

// Close closes what has not been read: the bytes are the exchange's.
func (k *kept) Close() error {
	if k.rest != nil {
		return k.rest.Close()
	}
	return nil
}

// Buffered is how much can be read without waiting.
func (k *kept) Buffered() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.text) - k.at
}

// bytes is the body, nil where there is none any more.
func (k *kept) bytes() []byte {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.text
}

// digest is that of the whole body, and its length; neither is known of one that is
// too long.
func (k *kept) digest() (string, int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.rest != nil {
		return "", -1
	}
	return digest(k.text), int64(len(k.text))
}

// drop lets go of the body, of which nobody reads any more.
func (k *kept) drop() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.of.give(k.id, k.room)
	k.text, k.room, k.gone = nil, 0, true
}

// fill reads at most limit bytes and one more, by which the policy knows that
// there are. Room is made for what has come, not for what is announced.
func (k *kept) fill(body io.Reader, limit int64) error {
	for {
		if len(k.text) == cap(k.text) {
			size := min(max(2*int64(cap(k.text)), firstPiece), limit+1)
			if err := k.of.take(k.id, size-k.room); err != nil {
				return err
			}
			k.room = size
			k.text = append(make([]byte, 0, size), k.text...)
		}
		n, err := body.Read(k.text[len(k.text):cap(k.text)])
		k.text = k.text[:len(k.text)+n]
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case int64(len(k.text)) > limit:
			return nil
		}
	}
}

// unsuited says why a request has no body that is JSON whoever reads it, or nil.
func unsuited(r *http.Request) error {
	return policy.UnsuitedBody(r.Header, r.Body == nil || r.Body == http.NoBody)
}

// readBody reads the body of a request where the policy has to see it. The error that
// it returns refuses the request for how the body came: its content is for the policy to
// judge.
func (q *request) readBody(w http.ResponseWriter, r *http.Request) *form.Error {
	g := q.gateway
	if g.viewer == nil {
		return nil
	}
	need := g.viewer.Need(q.input())
	if need.Max == 0 {
		return nil
	}
	if q.form.unsuited = unsuited(r); q.form.unsuited != nil {
		return nil
	}
	if r.ContentLength > need.Max {
		q.form.unsuited = policy.TooLong(need.Max)
		return nil
	}
	q.form.kept = &kept{of: g.room, id: q.identity.ID, sent: &q.sent.read}
	late, stop := deadline(w, r, g.handshake)
	err := q.form.kept.fill(r.Body, need.Max)
	stop()
	switch {
	case err == nil:
	case errors.Is(err, errNoRoomOfOne):
		w.Header().Set("Retry-After", "1")
		return &form.Error{Status: http.StatusTooManyRequests, Rule: "bodies", Reason: err.Error()}
	case errors.Is(err, errNoRoom):
		w.Header().Set("Retry-After", "1")
		return &form.Error{Status: http.StatusServiceUnavailable, Rule: "bodies", Reason: err.Error()}
	case late.Load() || errors.Is(err, os.ErrDeadlineExceeded):
		return &form.Error{Status: http.StatusRequestTimeout, Rule: "slow-body", Reason: "the body, which the policy has to see, did not come in time"}
	default:
		return &form.Error{Status: http.StatusBadRequest, Rule: "body", Reason: "the body, which the policy has to see, broke off or is not framed as it should be"}
	}
	q.sent.read.Store(0) // from here on by what leaves
	body := r.Body
	r.Body = q.form.kept
	delete(r.Header, "Expect") // it is here
	if int64(len(q.form.kept.text)) > need.Max {
		q.form.unsuited = policy.TooLong(need.Max) // where that is not enforced, all of it leaves
		q.form.kept.rest = body
		return nil
	}
	if r.Trailer == nil {
		r.ContentLength = int64(len(q.form.kept.text))
	}
	q.form.seen.Size = int64(len(q.form.kept.text))
	return nil
}

// deadline breaks the reading of a body off, and says that it has, unless it is
// stopped before d is over.
func deadline(w http.ResponseWriter, r *http.Request, d time.Duration) (late *atomic.Bool, stop func()) {
	late = new(atomic.Bool)
	if r.ProtoMajor == 2 {
		control := http.NewResponseController(w)
		if control.SetReadDeadline(time.Now().Add(d)) == nil {
			return late, func() { _ = control.SetReadDeadline(time.Time{}) }
		}
	}
	body := r.Body
	t := time.AfterFunc(d, func() {
		late.Store(true)
		_ = body.Close()
	})
	return late, func() { t.Stop() }
}

// askAboutBody decides on the request, with what the policy has to see of its body. That is
// forgotten at once: it is much larger in Rego's form.
func (q *request) askAboutBody(ctx context.Context) policy.Decision {
	g, in := q.gateway, q.input()
	if g.viewer == nil {
		return g.decide(ctx, in)
	}
	need := g.viewer.Need(in) // which may be another than it was
	if need.Max == 0 {
		return g.decide(ctx, in)
	}
	select {
	case g.room.judging <- struct{}{}:
		defer func() { <-g.room.judging }()
	case <-ctx.Done():
		return policy.Decision{Action: policy.Deny, Reason: errClient.Error()}
	}
	seen := *q.form.seen
	if q.form.unsuited != nil {
		seen.Body = policy.NoBody(q.form.unsuited)
	} else if text := q.form.kept.bytes(); text != nil {
		seen.Body = policy.ReadBody(need, text)
	}
	in.Request = &seen
	return g.decide(ctx, in)
}
