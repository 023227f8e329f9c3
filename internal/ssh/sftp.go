package ssh

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"sallyport/internal/ipc"
	"sallyport/policy"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
)

// sftp serves the protocol of that name (draft-ietf-secsh-filexfer-02, version 3)
// with the sandbox's files, so that no program for it is needed in the image.
func (g *guest) sftp(ch ssh.Channel, requests asked) {
	is, _, err := g.begin(openCall{Use: policy.ProtocolSFTP})
	if err != nil {
		fail(ch, failure(err), 1)
		return
	}
	f := &filer{g: g, use: is.Use, writers: map[string]*writer{}}
	leave := func() {
		c := steerCall{Connection: g.id, Use: is.Use, Over: true}
		_ = g.s.peer.Call(context.Background(), callSteer, c, &ipc.None{})
	}
	defer leave()
	served := make(chan struct{})
	defer close(served)
	go func() {
		refuse(requests)
		_ = ch.Close()
		// Serve waits for what is being read and written, which may not come, or not be
		// taken, as long as the sandbox likes.
		select {
		case <-served:
		case <-time.After(leaveWithin):
			leave()
		}
	}()
	folder := is.Folder
	if !path.IsAbs(folder) {
		folder = "/"
	}
	s := sftp.NewRequestServer(&stream{ch, g}, sftp.Handlers{FileGet: f, FilePut: f, FileCmd: f, FileList: f}, sftp.WithStartDirectory(folder))
	if err := s.Serve(); err != nil && !errors.Is(err, io.EOF) {
		return
	}
	exit(ch, 0)
}

// stream is a channel that notes what passes. Its end is the session's to make.
type stream struct {
	ch ssh.Channel
	g  *guest
}

func (s *stream) Read(p []byte) (int, error)  { s.g.touch(); return s.ch.Read(p) }
func (s *stream) Write(p []byte) (int, error) { s.g.touch(); return s.ch.Write(p) }
func (s *stream) Close() error                { return s.ch.CloseWrite() }

// filer has the Door do what is asked of files.
type filer struct {
	g    *guest
	use  uint64
	open atomic.Int32 // folders, and files whose writing has not begun

	mu      sync.Mutex
	writers map[string]*writer // by path
	rest    rest               // of the folder that was read last
}

func (f *filer) call(do, at string, c fileCall) (fileReply, error) {
	c.Connection, c.Use, c.Do, c.Path = f.g.id, f.use, do, []byte(at)
	var reply fileReply
	err := f.g.s.peer.Call(f.g.ctx, callFile, c, &reply)
	if err == nil && do != "list" && do != "remove" && do != "rmdir" && len(reply.Files) != 1 {
		err = sftp.ErrSSHFxFailure
	}
	return reply, status(err)
}

// status is an error as SFTP has it.
func status(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errNoFile):
		return sftp.ErrSSHFxNoSuchFile
	case errors.Is(err, errOwner), errors.Is(err, errDenied):
		return sftp.ErrSSHFxPermissionDenied
	case errors.Is(err, errEarlier):
		return sftp.ErrSSHFxOpUnsupported
	}
	return err // its text goes to the client
}

// Fileread opens a file to be read.
func (f *filer) Fileread(r *sftp.Request) (io.ReaderAt, error) {
	in := &reader{open: func() (io.ReadCloser, error) { return f.stream(streamCall{Path: []byte(r.Filepath)}) }}
	if err := in.begin(); err != nil {
		return nil, status(err)
	}
	return in, nil
}

// Filewrite opens a file to be written as a whole, which it is once it is closed, or
// to be added to. Clients that ask to read it too get errors for that.
func (f *filer) Filewrite(r *sftp.Request) (io.WriterAt, error) {
	flags := r.Pflags()
	do := "stat"
	if flags.Excl {
		do = "lstat"
	}
	i, err := f.call(do, r.Filepath, fileCall{})
	there := err == nil
	switch {
	case there && flags.Excl:
		return nil, sftp.ErrSSHFxFailure
	case !there && !flags.Creat && !flags.Trunc:
		return nil, err
	}
	w := &writer{of: f, call: streamCall{Path: []byte(r.Filepath), Write: true}, adds: flags.Append}
	w.moved = make(chan struct{})
	if !there && len(r.Attrs) == 4 {
		// Which attributes there are is not kept of this request (its Flags are those of
		// opening), and only the mode alone has that length. Who sends others sets them
		// all again afterwards. A file that is there keeps its own.
		w.call.Mode = wire.Mode(binary.BigEndian.Uint32(r.Attrs) & 0o7777)
	}
	switch {
	case there && !flags.Trunc && i.Files[0].Size > 0 && i.Files[0].Type == wire.Regular:
		if f.open.Add(1) > maxStreams {
			f.open.Add(-1)
			return nil, sftp.ErrSSHFxFailure
		}
		w.at, w.unset = i.Files[0].Size, true
	case there && flags.Append && !flags.Trunc:
		w.call.End = new(int64)
		fallthrough
	default:
		if w.to, err = f.stream(w.call); err != nil {
			return nil, status(err)
		}
	}
	f.mu.Lock()
	f.writers[r.Filepath] = w
	f.mu.Unlock()
	return w, nil
}

// writer is that of a file that is being written, or nil.
func (f *filer) writer(at string) *writer {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.writers[at]
}

func (f *filer) forget(w *writer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at := string(w.call.Path); f.writers[at] == w {
		delete(f.writers, at)
	}
}

func (f *filer) stream(c streamCall) (*contents, error) {
	c.Connection, c.Use = f.g.id, f.use
	file, err := f.g.s.peer.CallFile(f.g.ctx, callStream, c, &ipc.None{})
	if err != nil {
		return nil, err
	}
	conn, err := ipc.Inherited(file)
	if err != nil {
		return nil, err
	}
	return newContents(conn), nil
}

// Filecmd does what has no answer but whether it was done.
func (f *filer) Filecmd(r *sftp.Request) error {
	var err error
	switch r.Method {
	case "Rename":
		_, err = f.call("move", r.Filepath, fileCall{To: []byte(r.Target)})
	case "Rmdir":
		_, err = f.call("rmdir", r.Filepath, fileCall{})
	case "Remove":
		_, err = f.call("remove", r.Filepath, fileCall{})
	case "Mkdir":
		_, err = f.call("mkdir", r.Filepath, fileCall{}) // its mode is not kept of the request
	case "Setstat":
		err = f.set(r)
	default:
		err = sftp.ErrSSHFxOpUnsupported
	}
	return err
}

// set makes a file what it is to be. One that is being written becomes that when it is
// in its place. Owners stay as they are, and who asks for others is refused.
func (f *filer) set(r *sftp.Request) error {
	flags, want := r.AttrFlags(), r.Attributes()
	if want == nil {
		return sftp.ErrSSHFxBadMessage // it is shorter than it says
	}
	var a sandbox.Attributes
	if flags.Permissions {
		m := wire.Mode(want.Mode & 0o7777)
		a.Mode = &m
	}
	if flags.Acmodtime {
		accessed, modified := time.Unix(int64(want.Atime), 0), time.Unix(int64(want.Mtime), 0)
		a.Accessed, a.Modified = &accessed, &modified
	}
	if flags.Size {
		size := int64(want.Size)
		a.Size = &size
	}
	if w := f.writer(r.Filepath); w != nil {
		if flags.UidGid {
			return sftp.ErrSSHFxOpUnsupported
		}
		return w.later(a)
	}
	if flags.UidGid {
		i, err := f.call("stat", r.Filepath, fileCall{})
		if err != nil {
			return err
		}
		if i.Files[0].UID != want.UID || i.Files[0].GID != want.GID {
			return sftp.ErrSSHFxOpUnsupported
		}
	}
	_, err := f.call("set", r.Filepath, fileCall{Set: a})
	return err
}

// PosixRename is Rename that replaces what is there.
func (f *filer) PosixRename(r *sftp.Request) error {
	_, err := f.call("replace", r.Filepath, fileCall{To: []byte(r.Target)})
	return err
}

// Filelist says what a file is, or what is in a folder.
func (f *filer) Filelist(r *sftp.Request) (sftp.ListerAt, error) {
	switch r.Method {
	case "List":
		if i, err := f.call("stat", r.Filepath, fileCall{}); err != nil {
			return nil, err
		} else if i.Files[0].Type != wire.Folder {
			return nil, sftp.ErrSSHFxFailure
		}
		if f.open.Add(1) > maxStreams {
			f.open.Add(-1)
			return nil, sftp.ErrSSHFxFailure
		}
		return &folder{f: f, at: r.Filepath}, nil
	case "Stat":
		return f.look("stat", r.Filepath)
	}
	return nil, sftp.ErrSSHFxOpUnsupported
}

// Lstat says what a file is, of a symbolic link what that is.
func (f *filer) Lstat(r *sftp.Request) (sftp.ListerAt, error) { return f.look("lstat", r.Filepath) }

// Readlink says where a symbolic link leads.
func (f *filer) Readlink(at string) (string, error) {
	i, err := f.call("lstat", at, fileCall{})
	if err == nil && i.Files[0].Type != wire.Link {
		err = sftp.ErrSSHFxFailure
	}
	if err != nil {
		return "", err
	}
	return i.Files[0].Target, nil
}

func (f *filer) look(do, at string) (sftp.ListerAt, error) {
	i, err := f.call(do, at, fileCall{})
	if err != nil {
		return nil, err
	}
	return one{&fileInfo{i.Files[0]}}, nil
}

type one []os.FileInfo

func (o one) ListAt(to []os.FileInfo, at int64) (int, error) {
	if at >= int64(len(o)) {
		return 0, io.EOF
	}
	return copy(to, o[at:]), nil
}

// maxKept bounds the bytes that a use keeps of the page of a folder, of whatever many
// are open.
const maxKept = 256 << 10

// rest is what has been listed of a folder and not yet been asked for.
type rest struct {
	of    *folder
	files []sandbox.File
	last  bool // there is no other page
}

// take is the rest that is kept if it is that folder's. It is kept no longer.
func (f *filer) take(d *folder) (r rest) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rest.of == d {
		r, f.rest = f.rest, rest{}
	}
	return r
}

// keep keeps a rest in place of another, unless it is large: then it is listed again.
func (f *filer) keep(r rest) {
	size := 0
	for _, i := range r.files {
		size += int(unsafe.Sizeof(i)) + len(i.Name) + len(i.Raw) + len(i.Target)
	}
	if size > maxKept {
		return
	}
	r.files = slices.Clone(r.files) // without what was before
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rest = r
}

// folder lists one in order. Many may be open, so that each keeps but where it is.
type folder struct {
	f     *filer
	at    string
	after string
	from  int64 // number of the next
	done  bool
}

func (d *folder) ListAt(to []os.FileInfo, at int64) (int, error) {
	if at != d.from {
		return 0, sftp.ErrSSHFxFailure
	}
	r, n := d.f.take(d), 0
	for n < len(to) && !d.done {
		if len(r.files) == 0 {
			reply, err := d.f.call("list", d.at, fileCall{After: []byte(d.after)})
			if err != nil {
				return n, err
			}
			r = rest{d, reply.Files, !reply.More || len(reply.Files) == 0}
		}
		for ; n < len(to) && len(r.files) > 0; n++ {
			i := r.files[0]
			name := wire.RawName(i.Name, i.Raw)
			if len(name) > wire.MaxPath {
				return n, sftp.ErrSSHFxFailure
			}
			to[n], d.after, r.files = &fileInfo{i}, name, r.files[1:]
			d.from++
		}
		d.done = r.last && len(r.files) == 0
	}
	if len(r.files) > 0 {
		d.f.keep(r)
	}
	if n < len(to) {
		return n, io.EOF
	}
	return n, nil
}

func (d *folder) Close() error {
	d.f.take(d)
	d.f.open.Add(-1)
	return nil
}

// fileInfo is what the sandbox says of a file.
type fileInfo struct{ f sandbox.File }

func (i *fileInfo) Name() string       { return wire.RawName(i.f.Name, i.f.Raw) }
func (i *fileInfo) Size() int64        { return i.f.Size }
func (i *fileInfo) ModTime() time.Time { return i.f.Modified }
func (i *fileInfo) IsDir() bool        { return i.f.Type == wire.Folder }
func (i *fileInfo) Sys() any           { return nil }
func (i *fileInfo) Uid() uint32        { return i.f.UID }
func (i *fileInfo) Gid() uint32        { return i.f.GID }

func (i *fileInfo) Mode() fs.FileMode {
	m := fs.FileMode(i.f.Mode & 0o777)
	for bit, is := range map[wire.Mode]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if i.f.Mode&bit != 0 {
			m |= is
		}
	}
	switch i.f.Type {
	case wire.Folder:
		m |= fs.ModeDir
	case wire.Link:
		m |= fs.ModeSymlink
	case wire.Other:
		m |= fs.ModeIrregular
	}
	return m
}
