package manager

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"

	"sallyport/internal/terminal"
	"sallyport/memory"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/agent/wire"
	"sallyport/sandbox/manifest"
	"sallyport/sandbox/state"
)

// Files are those of one sandbox. Each call starts or wakes it if need be; of one
// that cannot be started they are those on its disk (see agentForFiles), and all but Watch
// is done to them. A path that is not absolute is below the root folder. The sandbox says
// what is read of it: names, sizes and contents may be anything.
type Files struct {
	m    *Manager
	name string
	// User whose rights count: a name or number, and maybe a group after a
	// colon; default: the sandbox's.
	User string
}

// Files returns the files of a sandbox; whether it is there, each call finds out.
func (m *Manager) Files(name string) *Files { return &Files{m: m, name: name} }

// target is an agent's route for a file.
func (f *Files) target(route, file string, more ...string) string {
	return "/files" + route + wire.FileQuery(absolute(file), f.User, more...)
}

// as adds to a target whose rights count, where the sandbox has a user of its own.
func (f *Files) as(target, user string) string {
	if f.User != "" || user == "" {
		return target
	}
	return target + "&user=" + url.QueryEscape(user)
}

func absolute(file string) string {
	if strings.HasPrefix(file, "/") {
		return file
	}
	return "/" + file
}

// failed says what went wrong with a file. The text is the sandbox's, so it is
// escaped.
func (f *Files) failed(doing, file string, err error) error {
	what := func(err error) error {
		return fmt.Errorf("%s %s:%s: %w", doing, f.name, terminal.Escape(absolute(file)), err)
	}
	var said *channel.Error
	if !errors.As(err, &said) {
		return what(mapAgent(err))
	}
	kind := channel.ErrSilent
	switch said.Status {
	case http.StatusNotFound:
		kind = sandbox.ErrNoFile
	case http.StatusForbidden:
		kind = sandbox.ErrFileDenied
	case http.StatusConflict:
		kind = sandbox.ErrFileState
	case http.StatusInsufficientStorage:
		kind = sandbox.ErrNoSpace
	case http.StatusBadRequest:
		kind = sandbox.ErrBadSpec
	}
	return what(fmt.Errorf("%w: %s", kind, terminal.Escape(said.Failure.Error)))
}

// call is one exchange of JSON.
func (f *Files) call(ctx context.Context, doing, file, method, target string, in, out any) error {
	agent, user, done, err := f.m.agentForFiles(ctx, f.name, method != http.MethodGet)
	if err != nil {
		return err
	}
	defer done()
	if err := agent.JSON(ctx, method, f.as(target, user), in, out); err != nil {
		return f.failed(doing, file, err)
	}
	if method != http.MethodGet {
		f.written(ctx)
	}
	return nil
}

// written tells that the memory may be another one now.
func (f *Files) written(ctx context.Context) {
	if i, err := f.m.Get(f.name); err == nil {
		f.m.opt.Memories.Changed(ctx, MemoryOwner(i), memory.Cause{Operation: memory.ByAPI})
	}
}

// stream is one exchange whose body lasts. The caller closes it.
func (f *Files) stream(ctx context.Context, doing, file, method, target string, body io.Reader) (*http.Response, error) {
	agent, user, done, err := f.m.agentForFiles(ctx, f.name, method != http.MethodGet)
	if err != nil {
		return nil, err
	}
	resp, err := f.ask(ctx, agent, doing, file, method, f.as(target, user), body)
	if err != nil {
		done()
		return nil, err
	}
	resp.Body = &ending{resp.Body, done}
	return resp, nil
}

// ending is a body after whose end something is to be done.
type ending struct {
	io.ReadCloser
	done func()
}

func (b *ending) Close() error {
	defer b.done()
	return b.ReadCloser.Close()
}

// ask is one exchange with an agent whose body lasts.
func (f *Files) ask(ctx context.Context, agent *channel.Channel, doing, file, method, target string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+target, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		// A refusal comes before the body goes.
		req.Header.Set("Expect", "100-continue")
	}
	resp, err := agent.Do(req, true)
	if err != nil {
		return nil, f.failed(doing, file, err)
	}
	return resp, nil
}

// Stat says what is known of a file; of a symbolic link, unless followed, of the
// link itself.
func (f *Files) Stat(ctx context.Context, file string, follow bool) (info sandbox.File, err error) {
	if err := f.call(ctx, "looking at", file, http.MethodGet, f.target("/stat", file, "follow", wire.Flag(follow)), nil, &info); err != nil {
		return sandbox.File{}, err
	}
	return info, f.sound(info)
}

// sound refuses what no agent says of a file.
func (f *Files) sound(i sandbox.File) error {
	name := wire.RawName(i.Name, i.Raw)
	kind := i.Type == wire.Regular || i.Type == wire.Folder || i.Type == wire.Link || i.Type == wire.Other
	if !kind || i.Size < 0 || name == "" || len(name) > 255 || (strings.Contains(name, "/") && name != "/") || len(i.Target) > 4*wire.MaxPath {
		return fmt.Errorf("%s: %w: what it says of a file is none", f.name, channel.ErrSilent)
	}
	return nil
}

// List returns the entries of a folder by name, bytewise, after one: at most
// wire.MaxPage, and whether there are more.
func (f *Files) List(ctx context.Context, folder, after string) (list []sandbox.File, more bool, err error) {
	var page wire.Listing
	if err := f.call(ctx, "listing", folder, http.MethodGet, f.target("/list", folder, "after", after), nil, &page); err != nil {
		return nil, false, err
	}
	if page.Files == nil || len(page.Files) > wire.MaxPage || page.More && len(page.Files) == 0 {
		return nil, false, fmt.Errorf("listing %s: %w: it says that there are %d", f.name, channel.ErrSilent, len(page.Files))
	}
	last := after
	for _, i := range page.Files {
		if err := f.sound(i); err != nil {
			return nil, false, err
		}
		name := wire.RawName(i.Name, i.Raw)
		if name <= last { // else who asks for the next would never end
			return nil, false, fmt.Errorf("listing %s: %w: its names are in no order", f.name, channel.ErrSilent)
		}
		last = name
	}
	return page.Files, page.More, nil
}

// Mkdir makes a folder; with parents those on the way too, and it may be there.
func (f *Files) Mkdir(ctx context.Context, folder string, mode wire.Mode, parents bool) (info sandbox.File, err error) {
	in := wire.MakeFolder{Mode: mode, Parents: parents}
	if err := f.call(ctx, "making", folder, http.MethodPost, f.target("/mkdir", folder), in, &info); err != nil {
		return sandbox.File{}, err
	}
	return info, f.sound(info)
}

// Move renames a file or folder, within one file system. A file at the new name is replaced
// only if asked to.
func (f *Files) Move(ctx context.Context, from, to string, replace bool) (info sandbox.File, err error) {
	target := f.target("/move", from, "to", absolute(to), "replace", wire.Flag(replace))
	if err := f.call(ctx, "moving", from, http.MethodPost, target, nil, &info); err != nil {
		return sandbox.File{}, err
	}
	return info, f.sound(info)
}

// Remove removes a file or an empty folder; recursive, all that is in it. It
// follows no link.
func (f *Files) Remove(ctx context.Context, file string, recursive bool) error {
	return f.call(ctx, "removing", file, http.MethodDelete, f.target("", file, "recursive", wire.Flag(recursive)), nil, nil)
}

// Read returns what is known of a regular file, and its contents, which may be
// of any length. The caller closes them.
func (f *Files) Read(ctx context.Context, file string) (info sandbox.File, contents io.ReadCloser, err error) {
	resp, err := f.stream(ctx, "reading", file, http.MethodGet, f.target("", file), nil)
	if err != nil {
		return sandbox.File{}, nil, err
	}
	if info, err = wire.Head(resp); err != nil || f.sound(info) != nil {
		_ = resp.Body.Close()
		return sandbox.File{}, nil, fmt.Errorf("reading %s:%s: %w: it does not say what it sends", f.name, terminal.Escape(file), channel.ErrSilent)
	}
	return info, resp.Body, nil
}

// Write puts a file in the place of what is there, in one step: when it fails,
// what was there stays.
func (f *Files) Write(ctx context.Context, file string, contents io.Reader, o sandbox.WriteOptions) (info sandbox.File, err error) {
	target := f.target("", file, "mode", o.Mode.Query(), "parents", wire.Flag(o.Parents))
	err = f.send(ctx, "writing", file, http.MethodPut, target, contents, &info)
	if err != nil {
		return sandbox.File{}, err
	}
	return info, f.sound(info)
}

// maxAnswer bounds the answer to an upload, in bytes.
const maxAnswer = 64 << 10

func (f *Files) send(ctx context.Context, doing, file, method, target string, contents io.Reader, out any) error {
	resp, err := f.stream(ctx, doing, file, method, target, contents)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(out); err != nil {
		return fmt.Errorf("%s %s:%s: %w: %w", doing, f.name, terminal.Escape(file), channel.ErrSilent, err)
	}
	f.written(ctx)
	return nil
}

// Download returns a file, or a folder with all below it, as tar: its first name
// is as (default: the last of the path), which "." leaves out. The sandbox makes
// the archive: take it apart with archive.Unpack. Its end is an error where the
// sandbox says that it is not complete. The caller closes it.
func (f *Files) Download(ctx context.Context, file, as string) (io.ReadCloser, error) {
	resp, err := f.stream(ctx, "fetching", file, http.MethodGet, f.target("/tar", file, "as", as), nil)
	if err != nil {
		return nil, err
	}
	return &fetched{wire.Body(resp), f, file}, nil
}

// fetched is an archive whose end may come with the sandbox's words.
type fetched struct {
	io.ReadCloser
	f    *Files
	file string
}

func (d *fetched) Read(p []byte) (int, error) {
	n, err := d.ReadCloser.Read(p)
	if broken := new(wire.Broken); errors.As(err, &broken) {
		err = fmt.Errorf("fetching %s:%s: %w: %s", d.f.name, terminal.Escape(d.file), sandbox.ErrFileState, terminal.Escape(broken.Why))
	}
	return n, err
}

// Upload makes the files of a tar archive below a folder that is there. No name
// of it leads out of the folder and none through a symbolic link; devices are
// left out.
func (f *Files) Upload(ctx context.Context, folder string, tar io.Reader) (p sandbox.Packed, err error) {
	return p, f.send(ctx, "filling", folder, http.MethodPut, f.target("/tar", folder), tar, &p)
}

// maxEvent bounds a line of a watch, in bytes: a path, escaped.
const maxEvent = 8 * wire.MaxPath

// Watch tells what happens to a file, or to what is in a folder, until ctx is
// done, tell fails, or what is watched has gone. The first event says that it
// has begun. Changes from outside the sandbox are not seen.
func (f *Files) Watch(ctx context.Context, file string, o sandbox.WatchOptions, tell func(sandbox.FileEvent) error) error {
	agent, spec, err := f.m.startAgent(ctx, f.name)
	if err != nil {
		return err
	}
	resp, err := f.ask(ctx, agent, "watching", file, http.MethodGet, f.as(f.target("/watch", file, "recursive", wire.Flag(o.Recursive)), spec.User), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxEvent)
	for lines.Scan() {
		var e sandbox.FileEvent
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil || len(e.Op) > 16 || path.IsAbs(e.Path) {
			return fmt.Errorf("watching %s: %w: it tells no event", f.name, channel.ErrSilent)
		}
		if err := tell(e); err != nil || e.Op == wire.Gone {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("watching %s: %w: %w", f.name, channel.ErrSilent, err)
	}
	return fmt.Errorf("watching %s: %w", f.name, channel.ErrClosed)
}

// roots are where a sandbox's files lie: those of its layer and its memory.
func (m *Manager) roots(ctx context.Context, rec state.Record) ([]manifest.Root, error) {
	if m.opt.Layers == nil {
		return nil, fmt.Errorf("%w: this engine does not show where a sandbox's files lie", sandbox.ErrBadSpec)
	}
	upper, lower, err := m.opt.Layers.Layers(ctx, rec.ID)
	if err != nil {
		return nil, err
	}
	return []manifest.Root{
		{At: "/", Folder: upper, Lower: lower},
		{At: "/memory", Folder: memory.Dir(m.dir(rec.Name))},
	}, nil
}

// Changes tells what has changed of a sandbox's files since a snapshot of it, or
// the one that it was made of, its memory included; or, without one, what of its
// image. It asks the sandbox nothing. One that does not run is started, or, where it
// cannot be, looked at as it is. A file that is written meanwhile may be told or not.
func (m *Manager) Changes(ctx context.Context, name, snapshot string, tell func(sandbox.Change) error) (err error) {
	rec, s, done, err := m.startOrAttach(ctx, name, snapshot)
	if err != nil {
		return err
	}
	defer done()
	defer func() {
		if err != nil {
			err = fmt.Errorf("the changes of %s: %w", name, err)
		}
	}()
	roots, err := m.roots(ctx, rec)
	if err != nil {
		return err
	}
	if snapshot == "" {
		return manifest.Compare(ctx, roots[:1], tell) // no image has a memory
	}
	if err := m.verify(s); err != nil {
		return err
	}
	then, err := m.openSnapshotDisk(ctx, rec, s)
	if err != nil {
		return err
	}
	defer then.Close()
	layer, err := m.opt.Runtime.Layer(ctx, rec.ID)
	if err != nil {
		return err
	}
	if in, ok := strings.CutPrefix(layer, m.link(rec.ID)+"/"); ok { // from the pool
		layer = filepath.Join(m.dir(rec.Name), in)
	}
	within, err := filepath.Rel(m.opt.Disks.Layer(m.dir(rec.Name)), layer)
	if err != nil {
		return err
	}
	was := fmt.Sprintf("/proc/self/fd/%d", then.Fd())
	roots[0].Then = filepath.Join(was, filepath.Base(m.opt.Disks.Layer("")), within)
	roots[1].Then = filepath.Join(was, "memory")
	return manifest.Compare(ctx, roots, tell)
}

// openSnapshotDisk opens the root of a snapshot's disk.
func (m *Manager) openSnapshotDisk(ctx context.Context, rec state.Record, s sandbox.Snapshot) (*os.File, error) {
	done, err := m.reserveStorage(rec.Spec.Owner, rec.ID, s.Size)
	if err != nil {
		return nil, err
	}
	defer done()
	dir, err := os.MkdirTemp(m.dir(rec.Name), openDiskPrefix)
	if err != nil {
		return nil, err
	}
	if err := m.unpackTo(ctx, dir, s); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return m.opt.Disks.Look(dir)
}

// openDiskPrefix is what the folders begin with that disks are looked at in. One that is
// there when the manager opens is what a crash has left.
const openDiskPrefix = "look-"

func (m *Manager) removeOpenDisks(rec state.Record) error {
	left, _ := filepath.Glob(filepath.Join(m.dir(rec.Name), openDiskPrefix+"*"))
	var errs []error
	for _, dir := range left {
		errs = append(errs, m.opt.Disks.Detach(dir), os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}

// snapshotOrParents is a snapshot of a sandbox, or the one that it was made of.
func (m *Manager) snapshotOrParents(e *entry, snapshot string) (sandbox.Snapshot, error) {
	s, err := m.snapshot(e, snapshot)
	l := e.Rec.Lineage
	if l == nil || l.Snapshot != snapshot || !errors.Is(err, sandbox.ErrNoSnapshot) {
		return s, err
	}
	parent := &entry{Stored: state.Stored{Rec: state.Record{Name: l.Name, ID: l.Parent}}}
	if of, oerr := m.snapshot(parent, snapshot); oerr == nil {
		return of, nil
	}
	return s, err
}

// startOrAttach runs a sandbox, if it does not run, so that its disk is in place, and
// keeps it from being put to sleep until done. One that cannot start stays locked
// until then. Without the snapshot it does neither.
func (m *Manager) startOrAttach(ctx context.Context, name, snapshot string) (rec state.Record, s sandbox.Snapshot, done func(), err error) {
	e, err := m.lockWithMemory(ctx, name, "starting", m.memoryToWake)
	if err != nil {
		return rec, s, nil, err
	}
	if snapshot != "" {
		if s, err = m.snapshotOrParents(e, snapshot); err != nil {
			m.release(e)
			return rec, s, nil, err
		}
	}
	used := e.use()
	cause := m.start(ctx, e)
	if cause == nil {
		m.release(e)
		return e.Rec, s, used, nil
	}
	used()
	cause = fmt.Errorf("starting sandbox %s: %w", name, cause)
	if e.state.Live() {
		m.release(e)
		return rec, s, nil, cause
	}
	done = func() {
		m.releaseDisk(ctx, e)
		m.release(e)
	}
	if err := m.attachDisk(e.Rec); err != nil {
		done()
		return rec, s, nil, errors.Join(cause, err)
	}
	return e.Rec, s, done, nil
}
