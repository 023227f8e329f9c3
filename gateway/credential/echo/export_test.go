package echo

// Work returns what a search of a text for values without escapes takes: how many
// windows of it are looked up, and how many of them are compared with a value.
func Work(s *Scrubber, text []byte) (windows, compared int) {
	find := search{index: s.index.Load()}
	find.run(text, len(text))
	return find.work.windows, find.work.compared
}
