package live

import (
	"context"
	"testing"
)

type standing struct{ place Handle }

func (*standing) Recheck(context.Context) *Revoked { return nil }
func (*standing) Stop(*Revoked)                    {}
func (*standing) Cut()                             {}

// An entry that leaves is not found again, in whatever order it does, and one decided in an
// earlier epoch does not enter.
func TestSet(t *testing.T) {
	var u Set
	var all [4]standing
	first := u.Epoch()
	for i := range all {
		if !u.enter(&all[i].place, &all[i], first) {
			t.Fatalf("%d was not let in", i)
		}
	}
	for n, i := range []int{1, 3, 0, 2} {
		u.Leave(&all[i].place)
		u.Leave(&all[i].place) // which changes nothing
		_, list := u.all()
		if len(list) != len(all)-n-1 || u.count != len(list) {
			t.Fatalf("%d are there, %d counted, after %d of %d have left", len(list), u.count, n+1, len(all))
		}
		for _, e := range list {
			if e == &all[i].place {
				t.Errorf("%d is still there", i)
			}
		}
		if all[i].place.revoke(&Revoked{}) {
			t.Errorf("%d was ended after it had left", i)
		}
	}
	u.Advance(false)
	late := new(standing)
	if u.enter(&late.place, late, first) {
		t.Error("what was decided before the change was let in after it")
	}
	u.Leave(&late.place) // which has no place
	if _, list := u.all(); len(list) > 0 || u.count != 0 {
		t.Errorf("%d are there", len(list))
	}
}

func BenchmarkSet(b *testing.B) {
	var u Set
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		var s standing
		for pb.Next() {
			s.place.over, s.place.of = false, nil
			u.enter(&s.place, &s, u.Epoch())
			u.Leave(&s.place)
		}
	})
}
