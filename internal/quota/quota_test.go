package quota_test

import (
	"fmt"
	"testing"

	"sallyport/internal/quota"
)

// fill enters sandboxes of an owner until one is refused, or n have entered.
func fill(p *quota.Places, owner string, n int) (entered int) {
	for i := range n {
		if !p.Enter(fmt.Sprint(owner, i), owner) {
			return i
		}
	}
	return n
}

func TestOwnersLeaveAsManyAsTheyHave(t *testing.T) {
	p := quota.New(12, 12)
	for i, want := range []int{6, 3, 2, 1, 0} {
		if got := fill(p, string(rune('a'+i)), 12); got != want {
			t.Errorf("owner %d has %d, want %d", i+1, got, want)
		}
	}
	if got := p.Taken(); got != 12 {
		t.Errorf("%d are taken", got)
	}
	for i := range 6 {
		p.Leave(fmt.Sprint("a", i), "a")
	}
	if got := fill(p, "f", 12); got != 3 {
		t.Errorf("who comes later has %d, want 3", got)
	}
}

func TestASandboxIsBounded(t *testing.T) {
	p := quota.New(12, 2)
	for i, want := range []bool{true, true, false} {
		if got := p.Enter("box", ""); got != want {
			t.Errorf("place %d: %v", i+1, got)
		}
	}
	if !p.Enter("other", "") {
		t.Error("another of the same owner has none")
	}
	p.Leave("box", "")
	if !p.Enter("box", "") {
		t.Error("a place that was left is not given again")
	}
	if got := p.Taken(); got != 3 {
		t.Errorf("%d are taken", got)
	}
}

// However many sandboxes take all that they get, the next one has its least.
func TestLeast(t *testing.T) {
	p := quota.New(64, 16).Least(2)
	for i := range 100 {
		id := fmt.Sprint("greedy-", i)
		n := 0
		for p.Enter(id, "one") {
			n++
		}
		if n < 2 || n > 16 {
			t.Errorf("%s has %d places", id, n)
		}
	}
	for _, owner := range []string{"one", "another"} {
		for i := range 2 {
			if !p.Enter("late-"+owner, owner) {
				t.Errorf("of owner %s, place %d was refused", owner, i+1)
			}
		}
	}
}
