package gateway

import (
	"context"
	"testing"
)

type standing struct{ place entry }

func (*standing) judge(context.Context) *revokedError { return nil }
func (*standing) stop(*revokedError)                  {}
func (*standing) cut()                                {}

// What leaves is not found again, in whatever order it does, and what was decided
// in an earlier round does not enter.
func TestUnderway(t *testing.T) {
	var u underway
	var all [4]standing
	for i := range all {
		if !u.enter(&all[i].place, &all[i], 0) {
			t.Fatalf("%d was not let in", i)
		}
	}
	for n, i := range []int{1, 3, 0, 2} {
		u.leave(&all[i].place)
		u.leave(&all[i].place) // which changes nothing
		_, list := u.all()
		if len(list) != len(all)-n-1 || u.count != len(list) {
			t.Fatalf("%d are there, %d counted, after %d of %d have left", len(list), u.count, n+1, len(all))
		}
		for _, e := range list {
			if e == &all[i].place {
				t.Errorf("%d is still there", i)
			}
		}
		if all[i].place.revoke(&revokedError{}) {
			t.Errorf("%d was ended after it had left", i)
		}
	}
	u.round.Add(1)
	late := new(standing)
	if u.enter(&late.place, late, 0) {
		t.Error("what was decided before the change was let in after it")
	}
	u.leave(&late.place) // which has no place
	if _, list := u.all(); len(list) > 0 || u.count != 0 {
		t.Errorf("%d are there", len(list))
	}
}

func BenchmarkUnderway(b *testing.B) {
	var u underway
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		var s standing
		for pb.Next() {
			s.place.over, s.place.of = false, nil
			u.enter(&s.place, &s, 0)
			u.leave(&s.place)
		}
	})
}

// Frames end where they end, in whatever pieces they pass.
func TestFrontier(t *testing.T) {
	frames := [][]byte{
		{0x81, 2, 'h', 'i'},
		append([]byte{0x82, 126, 1, 0}, make([]byte, 256)...),
		append([]byte{0x02, 127, 0, 0, 0, 0, 0, 1, 0, 0}, make([]byte, 65536)...),
		{0x80, 0},
		{0x81, 0x82, 1, 2, 3, 4, 'h', 'i'}, // masked, which no server should
		{0x89, 0},
	}
	for _, size := range []int{1, 2, 3, 7, 1000, 1 << 20} {
		var f frontier
		if !f.between() {
			t.Fatal("not before the first frame")
		}
		for i, frame := range frames {
			for at := 0; at < len(frame); at += size {
				piece := frame[at:min(at+size, len(frame))]
				f.pass(piece)
				if whole := at+len(piece) == len(frame); f.between() != whole {
					t.Fatalf("pieces of %d: between frames is %v after %d bytes of %d of frame %d", size, f.between(), at+len(piece), len(frame), i)
				}
			}
		}
		f.pass([]byte{0x88, 0})
		if f.between() {
			t.Error("a frame may come after Close")
		}
	}
}
