package main

import (
	"cmp"

	"sallyport/internal/config"
	"sallyport/internal/durable"
	"sallyport/sandbox/disk"
)

// mostReserve is kept for the host by default, in bytes, unless a twentieth of
// its file system is less.
const mostReserve = 2 << 30

// tenantsPart is the part of its file system that a tenant may have by default.
const tenantsPart = 4

// openSpace is the file system that sandboxes' disks take from, what is kept of it for
// the host, and how much of it a tenant may have, in bytes.
func openSpace(cfg *config.Config) (s disk.Space, reserve, perTenant int64, err error) {
	s = disk.Space{Dir: sandboxesDir(cfg)}
	if err := durable.MkdirAll(s.Dir, 0o700); err != nil {
		return s, 0, 0, err
	}
	size, err := s.Size()
	if err != nil {
		return s, 0, 0, err
	}
	reserve = cmp.Or(int64(cfg.Sandbox.Reserve), min(mostReserve, size/20))
	return s, reserve, cmp.Or(int64(cfg.Sandbox.StoragePerTenant), size/tenantsPart), nil
}
