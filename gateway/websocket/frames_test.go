package websocket

import "testing"

// Frames end where they end, in whatever pieces they pass.
func TestFrames(t *testing.T) {
	frames := [][]byte{
		{0x81, 2, 'h', 'i'},
		append([]byte{0x82, 126, 1, 0}, make([]byte, 256)...),
		append([]byte{0x02, 127, 0, 0, 0, 0, 0, 1, 0, 0}, make([]byte, 65536)...),
		{0x80, 0},
		{0x81, 0x82, 1, 2, 3, 4, 'h', 'i'}, // masked, which no server should
		{0x89, 0},
	}
	for _, size := range []int{1, 2, 3, 7, 1000, 1 << 20} {
		var f Frames
		if !f.Boundary() {
			t.Fatal("not before the first frame")
		}
		for i, frame := range frames {
			for at := 0; at < len(frame); at += size {
				piece := frame[at:min(at+size, len(frame))]
				f.Pass(piece)
				if whole := at+len(piece) == len(frame); f.Boundary() != whole {
					t.Fatalf("pieces of %d: between frames is %v after %d bytes of %d of frame %d", size, f.Boundary(), at+len(piece), len(frame), i)
				}
			}
		}
		f.Pass([]byte{0x88, 0})
		if f.Boundary() {
			t.Error("a frame may come after Close")
		}
	}
}
