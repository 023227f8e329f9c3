package manifest

// Names sets maxNames until the returned function is called.
func Names(n int) (back func()) {
	had := maxNames
	maxNames = n
	return func() { maxNames = had }
}
