package manager

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sallyport/internal/size"
	"sallyport/sandbox"
	"sallyport/sandbox/state"
)

// storage is what a sandbox takes now. What cannot be read counts as nothing: it is
// going, or being made.
func (m *Manager) storage(name string) (s sandbox.Storage) {
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

func accountOf(i sandbox.Info) string { return account(i.Spec.Owner, i.ID) }

// sized is an Info with what it takes of the host's disk.
func (m *Manager) sized(i sandbox.Info) sandbox.Info {
	i.Storage = m.storage(i.Name)
	m.mu.Lock()
	defer m.mu.Unlock()
	i.Capped = cmp.Or(m.caps[accountOf(i)], m.caps[i.ID])
	return i
}

// reserveStorage refuses to write so many bytes more for a sandbox, at most, where its owner has
// no room for them, or has most of a disk that is nearly full. Until done they count as
// written.
func (m *Manager) reserveStorage(owner, id string, n int64) (done func(), err error) {
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
		return nil, fmt.Errorf("%w: %s", sandbox.ErrStorageQuota, why)
	}
	if used += m.booked[of]; quota > 0 && used+n > quota {
		return nil, fmt.Errorf("%w: the sandboxes of tenant %s, their snapshots and their memory on disk take %s of their %s (sandbox.storagePerTenant), and this may take %s more: %s",
			sandbox.ErrStorageQuota, owner, size.About(used), size.About(quota), size.About(n), makeRoom)
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

// makeRoom is what to do about ErrStorageQuota.
const makeRoom = "remove snapshots or sandboxes (`sallyport sandbox ls` says what each takes), or have the limit raised"

// checkQuota says whether an owner may have another sandbox.
func (m *Manager) checkQuota(owner string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.checkQuotaLocked(owner)
}

// checkQuotaLocked is spare with m.mu held.
func (m *Manager) checkQuotaLocked(owner string) error {
	if most := m.opt.PerOwner; owner != "" && most > 0 && len(m.shares[owner]) >= most {
		return fmt.Errorf("%w: %d: remove some first", sandbox.ErrQuota, most)
	}
	return nil
}

// takeQuota counts a sandbox that is about to be made as its owner's, if there is room
// for it. discard gives the room back.
func (m *Manager) takeQuota(r state.Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.checkQuotaLocked(r.Spec.Owner); err != nil {
		return err
	}
	m.count(r)
	return nil
}

// count counts a sandbox as its owner's. m.mu is held, or nobody else is there.
func (m *Manager) count(r state.Record) {
	owner := r.Spec.Owner
	if m.shares[owner] == nil {
		m.shares[owner] = map[string]bool{}
	}
	m.shares[owner][r.ID] = true
}

// uncount is its end. m.mu is held. What was in the pool is discarded by a record
// that may be of nobody yet.
func (m *Manager) uncount(id string) {
	for owner, all := range m.shares {
		if delete(all, id); len(all) == 0 {
			delete(m.shares, owner)
		}
	}
}
