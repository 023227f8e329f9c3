package scrub

// Work returns what a search of a text for values takes, and how many windows of it a
// value has.
func Work(s *Scrubber, text []byte) (all [5]int, hits int) {
	find := search{index: s.index.Load()}
	find.run(text, len(text))
	w := find.work
	return [5]int{w.windows, w.escapes, w.hits, w.steps, w.follows}, w.hits
}
