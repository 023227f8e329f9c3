package scrub

import "slices"

// takes says whether an escape can stand at a place in the pattern, and for how
// many of its bytes it does.
func (p *pattern) takes(i int, e *reading, fold bool) (n int, ok bool) {
	if i+int(e.size) <= len(p.text) && equal(e.bytes(), p.text[i:i+int(e.size)], fold || p.fold) {
		return int(e.size), true
	}
	return 0, p.lines && i >= wrap && e.lineEnd()
}

// maxEnds is how many ends of lines may come in a row within what is broken into
// lines: CR and LF by an escape each. With more of them a text could have each
// guess of a beginning walked on from for long, and the time would tell the right one.
const maxEnds = 2

// state says that a pattern has been followed to its byte i, and a text to its
// byte at, with so many ends of lines in a row before that.
type state struct{ i, at, ends int }

// on is the state after one reading of the text that took n bytes, and stood for
// some of the pattern's, none if it ended a line.
func (s state) on(took, n int) (next state, ok bool) {
	next = state{s.i + took, s.at + n, 0}
	if took == 0 {
		next.ends = s.ends + 1
	}
	return next, next.ends <= maxEnds
}

// follow returns where the occurrence ends that begins at a place, the longest if there
// are several, or -1.
//
// States wait in the order of their place in data, each once: whatever is in
// data, it takes no longer than the data's length times the pattern's.
func (p *pattern) follow(data []byte, from int, fold bool) (to int) {
	var space [8]state
	waiting := append(space[:0], state{at: from})
	limit := from + p.span
	fold = fold || p.fold
	to = -1
	for len(waiting) > 0 {
		now := waiting[0]
		waiting = waiting[:copy(waiting, waiting[1:])]
		if len(waiting) == 0 {
			// Alone, it can run ahead.
			for now.i < len(p.text) && now.at < len(data) && !introduces[data[now.at]] {
				if !equalByte(data[now.at], p.text[now.i], fold) {
					return to
				}
				now = state{now.i + 1, now.at + 1, 0}
			}
		}
		switch {
		case now.at > limit:
			continue
		case now.i == len(p.text):
			to = max(to, now.at)
			continue
		case now.at == len(data):
			continue
		}
		c := data[now.at]
		if equalByte(c, p.text[now.i], fold) {
			waiting = wait(waiting, state{now.i + 1, now.at + 1, 0})
		}
		if introduces[c] {
			var r readings
			read(data[now.at:], &r)
			for i := range r.list[:r.n] {
				if took, ok := p.takes(now.i, &r.list[i], fold); ok {
					if next, ok := now.on(took, int(r.list[i].n)); ok {
						waiting = wait(waiting, next)
					}
				}
			}
		}
	}
	return to
}

func wait(waiting []state, s state) []state {
	at, known := slices.BinarySearchFunc(waiting, s, func(a, b state) int {
		if a.at != b.at {
			return a.at - b.at
		}
		return a.i - b.i
	})
	if known {
		waiting[at].ends = min(waiting[at].ends, s.ends)
		return waiting
	}
	return slices.Insert(waiting, at, s)
}

// equal compares a text with as much of a pattern, and takes no longer the more of
// it is equal.
func equal(data []byte, text string, fold bool) bool {
	var differs byte
	if fold {
		for i, c := range data {
			differs |= lowered[c] ^ lowered[text[i]]
		}
		return differs == 0
	}
	for i, c := range data {
		differs |= c ^ text[i]
	}
	return differs == 0
}

// lowered makes ASCII's letters lower case.
var lowered = func() (table [256]byte) {
	for c := range table {
		table[c] = byte(c)
		if 'A' <= c && c <= 'Z' {
			table[c] |= lower
		}
	}
	return table
}()

func equalByte(a, b byte, fold bool) bool {
	return a == b || fold && a|lower == b|lower && 'a' <= a|lower && a|lower <= 'z'
}
