package agent

import (
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pkg/sftp"

	"sallyport/sandbox/agent/wire"
)

// maxOpen bounds the open files and folders of one SFTP session.
const maxOpen = 64

// sftp turns a connection of the host's into an SFTP session.
func (s *files) sftp(w http.ResponseWriter, r *http.Request, p ports) {
	if r.Header.Get("Upgrade") != wire.SFTPProtocol {
		refuse(w, http.StatusBadRequest, errors.New("ask for Upgrade: "+wire.SFTPProtocol))
		return
	}
	if err := asUser(s.whose(r), func() error { return nil }); err != nil {
		refuseFile(w, err)
		return
	}
	done := p.place(w)
	if done == nil {
		return
	}
	defer done()
	defer s.using()()
	upgrade(w, wire.SFTPProtocol, func(c *net.TCPConn) {
		if err := serveSFTP(c, s.whose(r), r.URL.Query().Get("folder")); !errors.Is(err, io.EOF) {
			breakOff(c)
		}
	})
}

// serveSFTP serves SFTP (draft-ietf-secsh-filexfer-02, version 3) with the rights of a
// user until the client ends it. Relative names begin at folder; empty: where commands
// begin.
func serveSFTP(c io.ReadWriteCloser, user, folder string) error {
	if folder == "" {
		folder, _ = os.Getwd()
	}
	if !filepath.IsAbs(folder) {
		folder = "/"
	}
	x := &sftpSession{user: user, uploads: map[string]*upload{}, broken: func() bool { return false }}
	if tcp, ok := c.(*net.TCPConn); ok {
		x.broken = func() bool { return broken(tcp) }
	}
	return sftp.NewRequestServer(newPaced(c), sftp.Handlers{FileGet: x, FilePut: x, FileCmd: x, FileList: x}, sftp.WithStartDirectory(folder)).Serve()
}

// sftpSession does what a client asks of files, with the rights of one user.
type sftpSession struct {
	user   string
	open   atomic.Int32 // files and folders
	broken func() bool  // the client has broken off

	mu      sync.Mutex
	uploads map[string]*upload // by path
}

// as runs f with the session's rights. The error is one that SFTP has.
func (x *sftpSession) as(f func() error) error { return status(asUser(x.user, f)) }

// status is an error as SFTP has it. The text of others goes to the client.
func status(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return sftp.ErrSSHFxNoSuchFile
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return sftp.ErrSSHFxPermissionDenied
	}
	return err
}

// enter counts an open file or folder until leave.
func (x *sftpSession) enter() error {
	if x.open.Add(1) > maxOpen {
		x.leave()
		return sftp.ErrSSHFxFailure
	}
	return nil
}

func (x *sftpSession) leave() { x.open.Add(-1) }

// handle is an open file or folder of a session.
type handle struct {
	*os.File
	x *sftpSession
}

func (h *handle) Close() error {
	h.x.leave()
	return h.File.Close()
}

// handle opens a file or folder with the session's rights.
func (x *sftpSession) handle(open func() (*os.File, error)) (*handle, error) {
	if err := x.enter(); err != nil {
		return nil, err
	}
	h := &handle{x: x}
	if err := x.as(func() (err error) { h.File, err = open(); return err }); err != nil {
		x.leave()
		return nil, err
	}
	return h, nil
}

// Fileread opens a file to be read.
func (x *sftpSession) Fileread(r *sftp.Request) (io.ReaderAt, error) {
	return x.handle(func() (f *os.File, err error) { f, _, err = open(r.Filepath); return f, err })
}

// Filewrite opens a file to be written as a whole, which it is once it is closed, or to
// be added to. A client that asks to read it too gets errors for that.
func (x *sftpSession) Filewrite(r *sftp.Request) (io.WriterAt, error) {
	flags := r.Pflags()
	look := os.Stat
	if flags.Excl {
		look = os.Lstat
	}
	var was fs.FileInfo
	err := x.as(func() (err error) { was, err = look(r.Filepath); return err })
	there := err == nil
	switch {
	case there && flags.Excl:
		return nil, sftp.ErrSSHFxFailure
	case !there && !flags.Creat && !flags.Trunc:
		return nil, err
	}
	if err := x.enter(); err != nil {
		return nil, err
	}
	w := &upload{x: x, path: r.Filepath, adds: flags.Append}
	if !there && len(r.Attrs) == 4 {
		// Which attributes there are is not kept of this request (its Flags are those of
		// opening), and only the mode alone has that length. A client that sends others
		// sets them all again afterwards. A file that is there keeps its own.
		w.mode = wire.Mode(binary.BigEndian.Uint32(r.Attrs) & 0o7777)
	}
	switch {
	case there && !flags.Trunc && was.Size() > 0 && was.Mode().IsRegular():
		w.at, w.unset = was.Size(), true
	case there && flags.Append && !flags.Trunc:
		err = w.append(0)
	default:
		err = w.whole()
	}
	if there && err == nil && !was.Mode().IsRegular() {
		err = errKind
	}
	if err != nil {
		x.leave()
		return nil, err
	}
	x.mu.Lock()
	x.uploads[r.Filepath] = w
	x.mu.Unlock()
	return w, nil
}

// upload is that of a file that is being written, or nil.
func (x *sftpSession) upload(path string) *upload {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.uploads[path]
}

// Filecmd does what has no answer but whether it was done.
func (x *sftpSession) Filecmd(r *sftp.Request) error {
	path := r.Filepath
	switch r.Method {
	case "Rename":
		return x.as(func() error { return move(path, r.Target, false) })
	case "Rmdir":
		return x.as(func() error { return syscall.Rmdir(path) })
	case "Remove":
		return x.as(func() error { return syscall.Unlink(path) })
	case "Mkdir": // the mode is not kept of the request
		return x.as(func() error { return mkdir(path, wire.MakeFolder{}) })
	case "Setstat":
		return x.setstat(r)
	}
	return sftp.ErrSSHFxOpUnsupported
}

// setstat sets what a client wants of a file. One that is being written is set once it
// is in its place. Owners stay as they are, and asking for others is refused.
func (x *sftpSession) setstat(r *sftp.Request) error {
	flags, want := r.AttrFlags(), r.Attributes()
	if want == nil {
		return sftp.ErrSSHFxBadMessage // it is shorter than it says
	}
	var a attributes
	if flags.Permissions {
		a.mode = new(wire.Mode(want.Mode & 0o7777))
	}
	if flags.Acmodtime {
		a.accessed, a.modified = new(time.Unix(int64(want.Atime), 0)), new(time.Unix(int64(want.Mtime), 0))
	}
	if flags.Size {
		a.size = new(int64(want.Size))
	}
	if w := x.upload(r.Filepath); w != nil {
		if flags.UidGid {
			return sftp.ErrSSHFxOpUnsupported
		}
		return w.later(a)
	}
	return x.as(func() error {
		if flags.UidGid {
			is, err := stated(r.Filepath, true)
			if err != nil {
				return err
			}
			if is.UID != want.UID || is.GID != want.GID {
				return sftp.ErrSSHFxOpUnsupported
			}
		}
		return set(r.Filepath, a)
	})
}

// PosixRename is Rename that replaces what is there.
func (x *sftpSession) PosixRename(r *sftp.Request) error {
	return x.as(func() error { return move(r.Filepath, r.Target, true) })
}

// Filelist says what a file is, or what is in a folder.
func (x *sftpSession) Filelist(r *sftp.Request) (sftp.ListerAt, error) {
	switch r.Method {
	case "List":
		h, err := x.handle(func() (*os.File, error) {
			return os.OpenFile(r.Filepath, syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
		})
		if err != nil {
			return nil, err
		}
		return &folder{handle: h}, nil
	case "Stat":
		return x.look(r.Filepath, os.Stat)
	}
	return nil, sftp.ErrSSHFxOpUnsupported
}

// Lstat says what a file is, of a symbolic link what that is.
func (x *sftpSession) Lstat(r *sftp.Request) (sftp.ListerAt, error) {
	return x.look(r.Filepath, os.Lstat)
}

// Readlink says where a symbolic link leads.
func (x *sftpSession) Readlink(path string) (to string, err error) {
	err = x.as(func() (err error) { to, err = os.Readlink(path); return err })
	return to, err
}

func (x *sftpSession) look(path string, stat func(string) (fs.FileInfo, error)) (sftp.ListerAt, error) {
	var i fs.FileInfo
	err := x.as(func() (err error) { i, err = stat(path); return err })
	return one{i}, err
}

type one []os.FileInfo

func (o one) ListAt(to []os.FileInfo, at int64) (int, error) {
	if at >= int64(len(o)) {
		return 0, io.EOF
	}
	return copy(to, o[at:]), nil
}

// folder lists one from its start to its end.
type folder struct {
	*handle
	mu sync.Mutex
	at int64 // number of the next
}

func (d *folder) ListAt(to []os.FileInfo, at int64) (n int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if at != d.at {
		return 0, sftp.ErrSSHFxFailure
	}
	err = d.x.as(func() error {
		for n < len(to) {
			some, err := d.Readdir(len(to) - n) // without those that have gone meanwhile
			n += copy(to[n:], some)
			if err != nil {
				return err
			}
		}
		return nil
	})
	d.at += int64(n)
	return n, err
}
