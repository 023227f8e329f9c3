package seal_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"testing"
	"testing/iotest"

	"sallyport/internal/seal"
	"sallyport/internal/test/must"
)

// Sizes of a sealed stream's parts, as stream.go describes them.
const (
	chunkSize = 64 << 10
	sealedAs  = chunkSize + 16
)

func sealStream(t testing.TB, key *seal.Key, plain []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := key.NewWriter(&out)
	must.OK(t, err)
	// In pieces of many sizes.
	for rest, n := plain, 1; len(rest) > 0; n = n*3 + 1 {
		m, err := w.Write(rest[:min(n, len(rest))])
		must.OK(t, err)
		rest = rest[m:]
	}
	must.OK(t, w.Close())
	return out.Bytes()
}

func openStream(key *seal.Key, sealed io.Reader) ([]byte, error) {
	r, err := key.NewReader(sealed)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

func TestStreamRoundTrip(t *testing.T) {
	key := open(t, first(dirs(t)), t.TempDir())
	for _, n := range []int{0, 1, chunkSize - 1, chunkSize, chunkSize + 1, 2 * chunkSize, 3*chunkSize + 7} {
		plain := noise(n)
		sealed := sealStream(t, key, plain)
		for name, r := range map[string]io.Reader{"whole": bytes.NewReader(sealed), "by halves": iotest.HalfReader(bytes.NewReader(sealed)), "with its end": iotest.DataErrReader(bytes.NewReader(sealed))} {
			got, err := openStream(key, r)
			if err != nil || !bytes.Equal(got, plain) {
				t.Errorf("%d bytes, read %s: %d bytes, %v", n, name, len(got), err)
			}
		}
		if n > 16 && bytes.Contains(sealed, plain[:16]) {
			t.Errorf("%d bytes: the sealed form holds the plain text", n)
		}
		if again := sealStream(t, key, plain); bytes.Equal(again, sealed) {
			t.Errorf("%d bytes: sealed twice the same", n)
		}
	}
}

func TestStreamDamage(t *testing.T) {
	key := open(t, first(dirs(t)), t.TempDir())
	const chunks = 4
	plain := noise(chunks * chunkSize)
	sealed := sealStream(t, key, plain)
	body := len(sealed) - chunks*sealedAs
	head, parts := sealed[:body], slices.Collect(slices.Chunk(sealed[body:], sealedAs))
	join := func(p ...[]byte) []byte { return append(bytes.Clone(head), bytes.Join(p, nil)...) }
	other := sealStream(t, key, plain)

	bad := map[string][]byte{
		"without its last chunk":            join(parts[:3]...),
		"without its first chunk":           join(parts[1:]...),
		"without one in the middle":         join(parts[0], parts[2], parts[3]),
		"two chunks exchanged":              join(parts[0], parts[2], parts[1], parts[3]),
		"the last first":                    join(parts[3], parts[0], parts[1], parts[2]),
		"a chunk twice":                     join(parts[0], parts[0], parts[1], parts[2], parts[3]),
		"the last chunk twice":              join(parts[0], parts[1], parts[2], parts[3], parts[3]),
		"a byte behind it":                  append(bytes.Clone(sealed), 0),
		"a chunk of another stream":         join(parts[0], other[body+sealedAs:body+2*sealedAs], parts[2], parts[3]),
		"another stream's head":             append(bytes.Clone(other[:body]), sealed[body:]...),
		"another stream behind it":          append(bytes.Clone(sealed), other...),
		"only a head":                       head,
		"nothing":                           nil,
		"what Seal returned, not NewWriter": sure(key.Seal(plain)),
	}
	for name, damaged := range bad {
		if _, err := openStream(key, bytes.NewReader(damaged)); !errors.Is(err, seal.ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for n := 0; n < len(sealed); n += 1 + n/7 {
		if got, err := openStream(key, bytes.NewReader(sealed[:n])); !errors.Is(err, seal.ErrDamaged) {
			t.Errorf("cut to %d of %d bytes: %v", n, len(sealed), err)
		} else if !bytes.HasPrefix(plain, got) {
			t.Errorf("cut to %d bytes: what was read is not the beginning", n)
		}
	}
	for i := range body {
		changed := bytes.Clone(sealed)
		changed[i] ^= 1
		if _, err := openStream(key, bytes.NewReader(changed)); !errors.Is(err, seal.ErrDamaged) && !errors.Is(err, seal.ErrWrongKey) {
			t.Errorf("byte %d of the head changed: %v", i, err)
		}
	}
	for i := body; i < len(sealed); i += 9973 {
		changed := bytes.Clone(sealed)
		changed[i] ^= 0x80
		got, err := openStream(key, bytes.NewReader(changed))
		if !errors.Is(err, seal.ErrDamaged) || !bytes.HasPrefix(plain, got) {
			t.Errorf("byte %d changed: %d bytes, %v", i, len(got), err)
		}
	}
	stranger := open(t, first(dirs(t)), t.TempDir())
	if _, err := openStream(stranger, bytes.NewReader(sealed)); !errors.Is(err, seal.ErrWrongKey) {
		t.Errorf("opened with another key: %v", err)
	}
}

func sure(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

// TestStreamFailures: an error of what is below is that, and no damage.
func TestStreamFailures(t *testing.T) {
	key := open(t, first(dirs(t)), t.TempDir())
	broken := errors.New("the disk is on fire")
	sealed := sealStream(t, key, noise(3*chunkSize))
	for _, n := range []int{0, 5, 100, len(sealed) / 2} {
		r := io.MultiReader(bytes.NewReader(sealed[:n]), iotest.ErrReader(broken))
		if _, err := openStream(key, r); !errors.Is(err, broken) || errors.Is(err, seal.ErrDamaged) {
			t.Errorf("reading fails after %d bytes: %v", n, err)
		}
	}
	w, err := key.NewWriter(&failing{after: 1, err: broken})
	must.OK(t, err)
	if _, err := w.Write(noise(3 * chunkSize)); !errors.Is(err, broken) {
		t.Errorf("Write: %v", err)
	}
	if err := w.Close(); !errors.Is(err, broken) {
		t.Errorf("Close: %v", err)
	}
	if _, err := key.NewWriter(&failing{err: broken}); !errors.Is(err, broken) {
		t.Errorf("NewWriter: %v", err)
	}
}

// failing takes so many writes.
type failing struct {
	after int
	err   error
}

func (f *failing) Write(p []byte) (int, error) {
	if f.after == 0 {
		return 0, f.err
	}
	f.after--
	return len(p), nil
}

// TestStreamMemory: what is held does not grow with what passes.
func TestStreamMemory(t *testing.T) {
	key := open(t, first(dirs(t)), t.TempDir())
	const size = 256 << 20
	pr, pw := io.Pipe()
	go func() {
		w, err := key.NewWriter(pw)
		if err == nil {
			_, err = io.CopyN(w, zeros{}, size)
		}
		if err == nil {
			err = w.Close()
		}
		pw.CloseWithError(err)
	}()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r, err := key.NewReader(pr)
	must.OK(t, err)
	n, err := io.Copy(io.Discard, r)
	if err != nil || n != size {
		t.Fatalf("%d bytes, %v", n, err)
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 4<<20 {
		t.Errorf("%d bytes were allocated for %d that passed", used, size)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func BenchmarkStream(b *testing.B) {
	dir := b.TempDir()
	key, err := seal.Open(dir+"/key/key", dir+"/data")
	must.OK(b, err)
	const size = 64 << 20
	plain := noise(size)
	sealed := sealStream(b, key, plain)
	b.Run("seal", func(b *testing.B) {
		b.SetBytes(size)
		b.ReportAllocs()
		for b.Loop() {
			w, err := key.NewWriter(io.Discard)
			must.OK(b, err)
			_, _ = w.Write(plain)
			must.OK(b, w.Close())
		}
	})
	b.Run("open", func(b *testing.B) {
		b.SetBytes(size)
		b.ReportAllocs()
		for b.Loop() {
			r, err := key.NewReader(bytes.NewReader(sealed))
			if err == nil {
				_, err = io.Copy(io.Discard, r)
			}
			must.OK(b, err)
		}
	})
}

func ExampleKey_NewWriter() {
	dir, err := os.MkdirTemp("", "seal")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	key, err := seal.Open(dir+"/key/key", dir+"/data")
	if err != nil {
		fmt.Println(err)
		return
	}
	var sealed bytes.Buffer
	w, _ := key.NewWriter(&sealed)
	fmt.Fprint(w, "a sandbox's memory")
	_ = w.Close()
	r, _ := key.NewReader(&sealed)
	plain, err := io.ReadAll(r)
	fmt.Println(string(plain), err)
	// Output: a sandbox's memory <nil>
}
