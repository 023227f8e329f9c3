package limit_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/policy/limit"
)

func TestMoney(t *testing.T) {
	for text, want := range map[string]string{
		"5": "5.00", "5.00": "5.00", "0.15": "0.15", "0.000000001": "0.000000001", "1250.5": "1250.50", "9223372035": "9223372035.00", "0": "0.00",
	} {
		var m limit.Money
		if err := m.UnmarshalText([]byte(text)); err != nil || m.String() != want {
			t.Errorf("%s: %v %v", text, m, err)
		}
		var back limit.Money
		raw, _ := json.Marshal(m)
		if err := json.Unmarshal(raw, &back); err != nil || back != m {
			t.Errorf("%s: %s is %v, %v", text, raw, back, err)
		}
	}
	for _, text := range []string{"", "-1", "+1", ".5", "5.", "1e3", "1,5", "5 EUR", "0.0000000001", "9223372036", "1.+5", "99999999999999999999", "NaN"} {
		var m limit.Money
		if err := m.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is %v", text, m)
		}
	}
	var m limit.Money
	if err := json.Unmarshal([]byte("2.5"), &m); err != nil || m != 2.5e9 {
		t.Errorf("a number: %v, %v", m, err)
	}
	for _, tt := range []struct {
		price limit.Money
		n     int64
		want  limit.Money
	}{
		{1.25e9, 1_000_000, 1.25e9},
		{1.25e9, 1, 1250},
		{1, 1, 1}, // rounded up
		{1, 1_000_001, 2},
		{0, 5, 0},
		{5, -5, 0},
		{math.MaxInt64, math.MaxInt64, math.MaxInt64},
		{math.MaxInt64, 2_000_000, math.MaxInt64},
	} {
		if got := tt.price.For(tt.n); got != tt.want {
			t.Errorf("%v for %d: %d, want %d", tt.price, tt.n, got, tt.want)
		}
	}
}

func TestCharge(t *testing.T) {
	c := newClock("2026-03-02T22:30:00Z")
	b := limit.NewBook(c.now)
	both := claim("both", "a", time.Hour, limit.Amount{Tokens: 100, Cost: 2e9})
	u, err := b.Take(0, both)
	if err != nil || !u.Charged() || u.Metered() {
		t.Fatal(err)
	}
	if err := u.Charge(100, 1e9); err != nil {
		t.Errorf("all of it: %v", err)
	}
	if err := u.Charge(-50, -1e9); err != nil {
		t.Error(err)
	}
	if _, err := b.Take(0, both); exceeded(err) != "both tokens 30m0s" {
		t.Errorf("got %v", err)
	}
	if err := u.Charge(1, 0); exceeded(err) != "both tokens 30m0s" || u.Err() == nil {
		t.Errorf("more: %v", err)
	}
	u.End()
	c.add(time.Hour)
	u, err = b.Take(0, both)
	must.OK(t, err)
	_ = u.Charge(1, 3e9)
	if _, err := b.Take(0, both); exceeded(err) != "both cost 30m0s" || err.Error() != "limit both: a cost of 2.00 within 1h0m0s is used up" {
		t.Errorf("got %v", err)
	}
	// No counter turns over.
	for range 3 {
		_ = u.Charge(math.MaxInt64-1, math.MaxInt64-1)
	}
	list, _ := b.Changed(0, 10)
	if got := list[0].Used; got.Tokens != math.MaxInt64 || got.Cost != math.MaxInt64 {
		t.Errorf("got %+v", got)
	}
	// A copy is put back, and never makes less of what was used.
	again := limit.NewBook(c.now)
	again.Restore(list)
	old := list[0]
	old.Used = limit.Amount{Tokens: 1}
	again.Restore([]limit.Count{old})
	if _, err := again.Take(0, both); exceeded(err) != "both tokens 30m0s" {
		t.Errorf("restored: %v", err)
	}
	again.Reset("both", limit.Every)
	if _, err := again.Take(0, both); err != nil {
		t.Errorf("reset: %v", err)
	}
}
