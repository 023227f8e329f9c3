package manager

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sallyport/sandbox/state"
)

// fakeDisks stand for disks where a test needs one to fail at a chosen step, or none to be
// mounted. A sandbox's data is in the folder of its container's files and in its memory, and
// that of any other folder in "disk".
type fakeDisks struct{ h *faultHost }

const fakeImage = "disk.img" // tells that a folder has a disk

type fakeFile struct {
	Data     []byte
	Mode     fs.FileMode
	Modified time.Time
}

func (d fakeDisks) on(folder string) map[string]string {
	rec, err := state.Read(folder)
	if err != nil {
		return map[string]string{"layer": filepath.Join(folder, "disk/layer"), "memory": filepath.Join(folder, "disk/memory")}
	}
	return map[string]string{"layer": filepath.Join(d.h.layers, rec.ID), "memory": filepath.Join(folder, "memory")}
}

func (d fakeDisks) step() error {
	d.h.mu.Lock()
	defer d.h.mu.Unlock()
	return d.h.step("disk")
}

func (d fakeDisks) Make(folder string, _ int64) (string, error) {
	return d.Layer(folder), errors.Join(os.MkdirAll(d.Layer(folder), 0o755), os.WriteFile(filepath.Join(folder, fakeImage), nil, 0o600))
}

func (d fakeDisks) Attach(string) error                 { return nil }
func (d fakeDisks) Settle(string) error                 { return nil }
func (d fakeDisks) Detach(string) error                 { return nil }
func (d fakeDisks) Thaw(string) error                   { return nil }
func (d fakeDisks) Layer(folder string) string          { return d.on(folder)["layer"] }
func (d fakeDisks) Freeze(string) (func() error, error) { return func() error { return nil }, d.step() }

func (d fakeDisks) Pack(_ context.Context, folder string, w io.Writer) error {
	if err := d.step(); err != nil {
		return err
	}
	all := map[string]fakeFile{}
	for name, dir := range d.on(folder) {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) || err == nil && !e.Type().IsRegular() {
				return nil
			}
			info, err := e.Info()
			if err != nil {
				return err
			}
			data, err := os.ReadFile(path)
			all[filepath.Join(name, strings.TrimPrefix(path, dir))] = fakeFile{data, info.Mode(), info.ModTime()}
			return err
		})
		if err != nil {
			return err
		}
	}
	return json.NewEncoder(w).Encode(all)
}

func (d fakeDisks) Unpack(_ context.Context, folder string, r io.Reader, checkSpace func() error) error {
	if err := d.step(); err != nil {
		return err
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	var all map[string]fakeFile
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	on := d.on(folder)
	for _, dir := range on {
		if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
			return err
		}
	}
	for name, f := range all {
		part, below, _ := strings.Cut(name, "/")
		path := filepath.Join(on[part], below)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, f.Data, 0o600), os.Chmod(path, f.Mode), os.Chtimes(path, f.Modified, f.Modified)); err != nil {
			return err
		}
	}
	return errors.Join(os.WriteFile(filepath.Join(folder, fakeImage), nil, 0o600), checkSpace())
}

func (d fakeDisks) Copy(ctx context.Context, from, to string, checkSpace func() error) error {
	var all strings.Builder
	if err := d.Pack(ctx, from, &all); err != nil {
		return err
	}
	return d.Unpack(ctx, to, strings.NewReader(all.String()), checkSpace)
}

func (d fakeDisks) Move(from, to string) error {
	if err := d.step(); err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(to, fakeImage)); err == nil {
		return nil
	}
	if _, err := os.Lstat(filepath.Join(from, fakeImage)); err != nil {
		return err
	}
	if err := d.Copy(context.Background(), from, to, func() error { return nil }); err != nil {
		return err
	}
	return d.Drop(from)
}

func (d fakeDisks) Drop(folder string) error {
	for _, dir := range d.on(folder) {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	if err := os.Remove(filepath.Join(folder, fakeImage)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (d fakeDisks) Look(folder string) (*os.File, error) {
	at, err := os.MkdirTemp(filepath.Dir(d.h.layers), "looked-")
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.Rename(filepath.Join(folder, "disk"), filepath.Join(at, "disk")), os.RemoveAll(folder)); err != nil {
		return nil, err
	}
	return os.Open(filepath.Join(at, "disk"))
}
