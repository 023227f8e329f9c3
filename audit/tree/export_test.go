package tree

// Fail has each operation on the file of hashes fail as fail says: write, sync or
// truncate. A write that fails has written a part, and a sync that fails has lost what
// was written since the last.
func (o *Options) Fail(fail func(operation string) error) {
	o.open = func(f file) file { return &faulty{file: f, fail: fail} }
}

type faulty struct {
	file
	fail          func(string) error
	synced, wrote int64
}

func (f *faulty) WriteAt(b []byte, at int64) (int, error) {
	f.wrote = max(f.wrote, at+int64(len(b)))
	if err := f.fail("write"); err != nil {
		n, _ := f.file.WriteAt(b[:len(b)/2+7], at)
		return n, err
	}
	return f.file.WriteAt(b, at)
}

func (f *faulty) Sync() error {
	if err := f.fail("sync"); err != nil {
		f.file.WriteAt(make([]byte, f.wrote-f.synced), f.synced)
		return err
	}
	f.synced = f.wrote
	return f.file.Sync()
}

func (f *faulty) Truncate(size int64) error {
	if err := f.fail("truncate"); err != nil {
		return err
	}
	return f.file.Truncate(size)
}
