package auditlog

// half is about lines of the growing segment that have zeros in them: the writer is about
// to finish them, unless they were damaged.
type half struct {
	size  int64 // of the segment, at the last look at it
	end   int64 // of what there was at the first look at such a line
	looks int
	found bool // by the last look
	all   int  // looks at all lines
}

const (
	maxLooks = 3 // at what there is tell the one from the other
	// maxAllLooks are more than a reader needs who does not follow, and who is not to
	// wait for one such line after the other.
	maxAllLooks = 100
)

// wait says whether the line at offset may be finished soon.
func (h *half) wait(offset int64, follow bool) bool {
	if offset >= h.end {
		h.end, h.looks = h.size, 0
	}
	if h.found = h.looks < maxLooks && (follow || h.all < maxAllLooks); h.found {
		h.looks++
		h.all++
	}
	return h.found
}
