package history

// SetMaxEntries has a commit record n entries, until restore is called.
func SetMaxEntries(n int) (restore func()) {
	before := maxEntries
	maxEntries = n
	return func() { maxEntries = before }
}
