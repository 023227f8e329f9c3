package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sallyport/internal/size"
)

// Storage is what a sandbox takes of the host's disk, in bytes: what is allocated to
// its files there, of its disk besides what is on its way. Each is counted whole, also
// where the host's file system shares blocks between copies: that they are shared ends
// with the next write.
type Storage struct {
	Disk      int64 `json:"disk"`
	Snapshots int64 `json:"snapshots"`
	Memory    int64 `json:"memory"` // written down while it is hibernated
}

// Total is the sum.
func (s Storage) Total() int64 { return s.Disk + s.Snapshots + s.Memory }

// ErrQuota refuses what would have an owner's sandboxes take more of the host's disk
// than they may.
var ErrQuota = errors.New("there is no more of the host's disk for this")

// storage is what a sandbox takes now. What cannot be read counts as nothing: it is
// going, or being made.
func (m *Manager) storage(name string) (s Storage) {
	if m.opt.Space != nil {
		s.Disk, _ = m.opt.Space.Used(m.dir(name))
	}
	s.Memory = allocated(filepath.Join(m.dir(name), checkpointFile)) + allocated(filepath.Join(m.dir(name), checkpointFile+partSuffix))
	folders, _ := os.ReadDir(m.snapshotsDir(name))
	for _, f := range folders {
		dir := filepath.Join(m.snapshotsDir(name), f.Name())
		files, _ := os.ReadDir(dir)
		for _, f := range files {
			s.Snapshots += allocated(filepath.Join(dir, f.Name()))
		}
	}
	return s
}

// allocated is what a file takes of the host's disk, in bytes.
func allocated(path string) int64 {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return 0
	}
	return st.Blocks * 512
}

// account is whose the bytes of a sandbox are: its owner's, or its own.
func account(owner, id string) string {
	if owner == "" {
		return id
	}
	return "owner " + owner
}

func (i Info) account() string { return account(i.Spec.Owner, i.ID) }

// sized is an Info with what it takes of the host's disk.
func (m *Manager) sized(i Info) Info {
	i.Storage = m.storage(i.Name)
	m.mu.Lock()
	defer m.mu.Unlock()
	i.Capped = cmp.Or(m.caps[i.account()], m.caps[i.ID])
	return i
}

// book refuses to write so many bytes more for a sandbox, at most, where its owner has
// no room for them, or has most of a disk that is nearly full. Until done they count as
// written.
func (m *Manager) book(owner, id string, n int64) (done func(), err error) {
	of, used := account(owner, id), int64(0)
	quota := m.opt.StoragePerOwner
	if owner == "" {
		quota = 0
	}
	if quota > 0 {
		for _, i := range m.List() {
			if i.Spec.Owner == owner {
				used += i.Storage.Total()
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if why := cmp.Or(m.caps[of], m.caps[id]); why != "" {
		return nil, fmt.Errorf("%w: %s", ErrQuota, why)
	}
	if used += m.booked[of]; quota > 0 && used+n > quota {
		return nil, fmt.Errorf("%w: the sandboxes of tenant %s, their snapshots and their memory on disk take %s of their %s (sandbox.storagePerTenant), and this may take %s more: %s",
			ErrQuota, owner, size.About(used), size.About(quota), size.About(n), makeRoom)
	}
	m.booked[of] += n
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.booked[of] -= n; m.booked[of] <= 0 {
			delete(m.booked, of)
		}
	}, nil
}

// makeRoom is what to do about ErrQuota.
const makeRoom = "remove snapshots or sandboxes (`sallyport sandbox ls` says what each takes), or have the limit raised"
