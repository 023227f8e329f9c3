package resolver

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"sallyport/internal/durable"
	"sallyport/internal/hostname"
)

// Addresses that stand for names. All are from RFC 2544's benchmark range, which
// nothing on the internet has.
var (
	// Prefix holds every synthetic address.
	Prefix = netip.MustParsePrefix("198.18.0.0/15")
	// Refusal stands for every name that no rule allows. The gateway answers
	// connections to it with the reason.
	Refusal = netip.AddrFrom4([4]byte{198, 18, 0, 1})
)

// The first synthetic address stands this far into Prefix; those below it are
// Refusal and room for its like.
const firstOffset = 16

const (
	defaultPerSandbox = 4096
	maxPerSandbox     = 1<<17 - firstOffset - 1 // without the prefix's last address
)

// Errors to branch on.
var (
	ErrTableFull = errors.New("the sandbox has looked up too many names")
	errForgotten = errors.New("the sandbox is gone")
	errDamaged   = errors.New("the sandbox's table of names is damaged")
)

// NameTableOptions of a NameTable. The zero NameTableOptions works.
type NameTableOptions struct {
	// PerSandbox bounds the names of one sandbox. Default: 4096; at most 131,055.
	PerSandbox int
	Logger     *slog.Logger // default: slog.Default()
}

// NameTable keeps which synthetic address stands for which name in which sandbox, in one
// file for each sandbox. It is safe for concurrent use; two processes must not share a
// folder.
//
// A pair that Assign has returned is on disk, and its address is given to no other name
// while the sandbox lives.
type NameTable struct {
	dir   string
	limit int
	log   *slog.Logger

	complain rate.Sometimes // about names that cannot be read

	mu    sync.Mutex
	files map[string]*nameFile // by sandbox, until Forget
}

// OpenNameTable opens the folder, and makes it with mode 0700 if it is missing. A
// sandbox's file is read when the sandbox is first asked for.
func OpenNameTable(dir string, o NameTableOptions) (*NameTable, error) {
	if o.PerSandbox == 0 {
		o.PerSandbox = defaultPerSandbox
	}
	if o.PerSandbox < 0 || o.PerSandbox > maxPerSandbox {
		return nil, fmt.Errorf("opening the table of names: %d names for one sandbox: at most %d", o.PerSandbox, maxPerSandbox)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("opening the table of names: %w", err)
	}
	if err := durable.RemoveUnfinished(dir); err != nil {
		return nil, fmt.Errorf("opening the table of names: %w", err)
	}
	return &NameTable{dir: dir, limit: o.PerSandbox, log: o.Logger, complain: rate.Sometimes{First: 1, Interval: 10 * time.Second}, files: map[string]*nameFile{}}, nil
}

// Assign returns the address of a name, the same one each time. The name is in lower case,
// without trailing dot.
func (t *NameTable) Assign(sandboxID, name string) (netip.Addr, error) {
	b, err := t.file(sandboxID)
	if err != nil {
		return netip.Addr{}, err
	}
	if !hostname.Valid(name) {
		return netip.Addr{}, fmt.Errorf("assigning an address to %q: not a host name", name)
	}
	a, err := b.assign(name, t.limit)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("assigning an address to %q in sandbox %q: %w", name, sandboxID, err)
	}
	return a, nil
}

// Assigned reports whether the name has an address.
func (t *NameTable) Assigned(sandboxID, name string) bool {
	b, err := t.file(sandboxID)
	return err == nil && b.has(name)
}

// Name returns the name of an address in a sandbox.
func (t *NameTable) Name(sandboxID string, addr netip.Addr) (string, bool) {
	b, err := t.file(sandboxID)
	if err != nil {
		return "", false
	}
	name, ok, err := b.name(addr.Unmap())
	if err != nil {
		t.complain.Do(func() {
			t.log.Error("names of a sandbox cannot be read", slog.String("sandbox_id", sandboxID), slog.Any("error", err))
		})
	}
	return name, ok
}

// Copy gives a fork, which must have no names yet, the names of its parent.
func (t *NameTable) Copy(from, to string) error {
	src, err := t.file(from)
	if err != nil {
		return err
	}
	dst, err := t.file(to)
	if err != nil {
		return err
	}
	data, err := src.contents()
	if err == nil {
		err = dst.create(data)
	}
	if err != nil {
		return fmt.Errorf("copying the names of sandbox %q to %q: %w", from, to, err)
	}
	return nil
}

// Forget removes a sandbox's names. It is no error if there are none.
func (t *NameTable) Forget(sandboxID string) error {
	b, err := t.file(sandboxID)
	if err != nil {
		return err
	}
	if err := b.remove(); err != nil {
		return fmt.Errorf("forgetting the names of sandbox %q: %w", sandboxID, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.files[sandboxID] == b {
		delete(t.files, sandboxID)
	}
	return nil
}

var idPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$`)

func (t *NameTable) file(sandboxID string) (*nameFile, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b, ok := t.files[sandboxID]; ok {
		return b, nil
	}
	// A name that could leave the folder as a file's name is no sandbox ID.
	if !idPattern.MatchString(sandboxID) {
		return nil, fmt.Errorf("not a sandbox ID: %q", sandboxID)
	}
	b := &nameFile{path: filepath.Join(t.dir, sandboxID+".names")}
	t.files[sandboxID] = b
	return b, nil
}

// address is the nth synthetic address, from 0.
func address(n int) netip.Addr {
	b := Prefix.Addr().As4()
	n += firstOffset
	return netip.AddrFrom4([4]byte{b[0], b[1] + byte(n>>16), byte(n >> 8), byte(n)})
}

// index is the inverse of address.
func index(a netip.Addr) (int, bool) {
	if !a.Is4() || !Prefix.Contains(a) {
		return 0, false
	}
	b := a.As4()
	n := int(b[1]-Prefix.Addr().As4()[1])<<16 | int(b[2])<<8 | int(b[3])
	return n - firstOffset, n >= firstOffset
}
