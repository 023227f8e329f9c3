package limits

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"

	"sallyport/audit"
	"sallyport/gateway/meter"
	"sallyport/policy"
	"sallyport/policy/limit"
)

// ErrUnpriced says why a limit of cost denies.
var ErrUnpriced = errors.New("its model has no price")

// TokenMeter counts the tokens of one request.
type TokenMeter struct {
	meter  *Meter
	path   string        // the model that the path names
	ask    *modelSniffer // nil where the body need not say
	reads  bool          // by a method that asks a model nothing
	status int
	answer *meter.Reader // nil before there is one
	socket bool          // its bytes have been charged as they went
}

// Charging tells whether some limit counts tokens, and which bounds their cost.
func Charging(d policy.Decision) (counts bool, cost *policy.Applied) {
	for i := range d.Limits {
		counts = counts || d.Limits[i].Charges()
		if d.Limits[i].Cost > 0 {
			cost = &d.Limits[i]
		}
	}
	return counts, cost
}

// Unpriced is what a limit of cost says of a request whose cost it cannot bound.
func Unpriced(rule, why string) *ExceededError {
	return &ExceededError{Rule: rule, Reason: "limit " + rule + ": " + why, Unpriced: true}
}

// Unreadable has all bytes charged as tokens: nothing in them can be read.
func (m *Meter) Unreadable() {
	if m != nil && m.use.Charged() {
		m.unread = true
	}
}

// CountTokens begins to count the tokens of an allowed request, where a limit does: else it
// returns nil. path is the request's, upgrade says that it asks for a WebSocket. It may give
// the request another body.
func (m *Meter) CountTokens(r *http.Request, path string, upgrade bool) *TokenMeter {
	if m == nil || !m.use.Charged() {
		return nil
	}
	t := &TokenMeter{meter: m, path: meter.InPath(path), socket: upgrade}
	if upgrade {
		m.Unreadable()
		return t
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodDelete:
		t.reads = true
	}
	if r.Body == nil || r.Body == http.NoBody || m.costed == "" {
		return t
	}
	t.ask = &modelSniffer{ReadCloser: r.Body, bill: t, left: r.ContentLength, model: meter.NewAsk()}
	r.Body = t.ask
	return t
}

// modelSniffer is a request's body on its way out. Its last byte leaves only when it has
// named a model that has a price: a server does not act on less.
type modelSniffer struct {
	io.ReadCloser
	bill  *TokenMeter
	left  int64 // until the end; less than none where that is not known
	model *meter.Ask
	// rates are the highest of the models that were named, nil before it is known
	// that each has some. A transport can go on reading after the request.
	rates atomic.Pointer[policy.Rates]
}

func (a *modelSniffer) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	a.model.Write(p[:n])
	a.left -= int64(n)
	if err != io.EOF && a.left != 0 || a.rates.Load() != nil {
		return n, err
	}
	if over := a.judge(); over != nil {
		return 0, over
	}
	return n, err
}

// Buffered is how much can be read without waiting.
func (a *modelSniffer) Buffered() int {
	if ahead, ok := a.ReadCloser.(interface{ Buffered() int }); ok {
		return ahead.Buffered()
	}
	return 0
}

// judge looks at what the whole body has named, where the path has not.
func (a *modelSniffer) judge() error {
	m := a.bill.meter
	models, err := a.model.Models()
	if a.bill.path != "" {
		models, err = []string{a.bill.path}, nil
	}
	var rates policy.Rates
	why := ""
	for _, model := range models {
		of, ok := m.prices.Of(model)
		if rates = rates.Max(of); !ok {
			why = "the model has no price"
		}
	}
	switch {
	case err != nil:
		why = err.Error()
	case why == "":
		a.rates.Store(&rates)
		return nil
	}
	if m.lenient {
		rates = m.prices.Highest()
		a.rates.Store(&rates)
		return nil
	}
	m.over.CompareAndSwap(nil, Unpriced(m.costed, why))
	return m.Err()
}

// refused tells whether a request was broken off since its model has no price.
func (m *Meter) refused() bool {
	over := m.over.Load()
	return over != nil && over.Unpriced
}

// Answered begins to read the answer.
func (t *TokenMeter) Answered(resp *http.Response) {
	kind := ""
	if values := resp.Header["Content-Type"]; len(values) == 1 {
		kind = values[0]
	}
	t.status = resp.StatusCode
	t.answer = meter.NewReader(kind)
}

// Feed takes what has come of the answer; err is that of its read.
func (t *TokenMeter) Feed(p []byte, err error) {
	if t.answer == nil {
		return
	}
	t.answer.Write(p)
	if err == io.EOF {
		t.answer.End()
	}
}

// used is the use of an ended request as its answer reports it. Where an answer of success
// reports none, or ended before its report was final, each byte of the request's body and
// of the answer's text counts as a token, which is no less than the use; estimated says so.
func (t *TokenMeter) used(sent int64) (r meter.Report, estimated bool) {
	switch {
	case t.answer != nil:
		r = t.answer.Report()
	case sent == 0 || t.meter.refused():
		return r, false // nothing has left that a server acts on
	}
	if r.Reported && r.Final || t.reads || t.answer != nil && t.status/100 != 2 {
		return r, false
	}
	if r.In == 0 {
		r.In = sent
	}
	r.Out = max(r.Out, r.Text)
	return r, true
}

// rates are what its tokens cost: the highest of what was asked for and of what
// has answered, or the highest of all where neither has a price.
func (t *TokenMeter) rates(answered string) policy.Rates {
	prices := t.meter.prices
	rates, ok := prices.Of(t.path)
	if t.ask != nil {
		if asked := t.ask.rates.Load(); asked != nil {
			rates, ok = rates.Max(*asked), true
		}
	}
	if of, has := prices.Of(answered); has {
		rates, ok = rates.Max(of), true
	}
	if !ok {
		return prices.Highest()
	}
	return rates
}

// costOf is what tokens cost.
func costOf(t meter.Tokens, at policy.Rates) limit.Money {
	return at.Input.For(t.In - t.Cached - t.CacheWrite).Plus(at.CachedInput.For(t.Cached)).
		Plus(at.CacheWrite.For(t.CacheWrite)).Plus(at.Output.For(t.Out))
}

// Charge takes the use of an ended request off its limits, and returns what its event says
// of that, with the cost. out and in are the bytes of its body and of its answer's.
func (t *TokenMeter) Charge(out, in int64) (*audit.Tokens, limit.Money) {
	if t.socket {
		return t.meter.Unread(out, in)
	}
	r, estimated := t.used(out)
	e := &audit.Tokens{Model: r.Model, In: r.In, Out: r.Out, Cached: r.Cached, CacheWrite: r.CacheWrite, Estimated: estimated}
	if e.Model == "" {
		e.Model = t.path
	}
	var cost limit.Money
	if t.meter.costed != "" {
		cost = costOf(r.Tokens, t.rates(r.Model))
		e.Cost = cost.String()
	}
	_ = t.meter.use.Charge(r.Sum(), cost) // nothing goes on that it could break off
	return e, cost
}

// Unread is what an event says of bytes that were charged as tokens, nil for none, with
// their cost.
func (m *Meter) Unread(out, in int64) (*audit.Tokens, limit.Money) {
	if m == nil || !m.unread {
		return nil, 0
	}
	e := &audit.Tokens{In: out, Out: in, Estimated: true}
	var cost limit.Money
	if m.costed != "" { // in observe mode
		cost = m.prices.Highest().Output.For(out + in)
		e.Cost = cost.String()
	}
	return e, cost
}
