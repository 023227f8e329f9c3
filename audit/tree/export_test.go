package tree

// Fail has each operation on the file of hashes fail as fail says: write, sync or
// truncate. A write that fails has written a part.
func (o *Options) Fail(fail func(operation string) error) {
	o.open = func(f file) file { return faulty{f, fail} }
}

type faulty struct {
	file
	fail func(string) error
}

func (f faulty) WriteAt(b []byte, at int64) (int, error) {
	if err := f.fail("write"); err != nil {
		n, _ := f.file.WriteAt(b[:len(b)/2+7], at)
		return n, err
	}
	return f.file.WriteAt(b, at)
}

func (f faulty) Sync() error {
	if err := f.fail("sync"); err != nil {
		return err
	}
	return f.file.Sync()
}

func (f faulty) Truncate(size int64) error {
	if err := f.fail("truncate"); err != nil {
		return err
	}
	return f.file.Truncate(size)
}
