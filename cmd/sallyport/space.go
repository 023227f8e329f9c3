package main

import (
	"sallyport/internal/config"
	"sallyport/internal/durable"
	"sallyport/sandbox/disk"
)

// mostReserve is kept for the host by default, in bytes, unless a twentieth of
// its file system is less.
const mostReserve = 2 << 30

// openSpace is the file system that sandboxes' disks take from, and what is kept
// of it for the host.
func openSpace(cfg *config.Config) (disk.Space, int64, error) {
	s := disk.Space{Dir: sandboxesDir(cfg)}
	if err := durable.MkdirAll(s.Dir, 0o700); err != nil {
		return s, 0, err
	}
	if r := int64(cfg.Sandbox.Reserve); r > 0 {
		return s, r, nil
	}
	size, err := s.Size()
	return s, min(mostReserve, size/20), err
}
