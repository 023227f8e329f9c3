package decode_test

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/andybalholm/brotli"
	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"go.uber.org/goleak"

	"sallyport/gateway/credential/decode"
	"sallyport/internal/test/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type writer interface {
	io.WriteCloser
	Flush() error
}

// codings are the ways to code, by name; one coding has two formats.
var codings = []struct {
	name, format string
	writer       func(io.Writer) writer
}{
	{"gzip", "gzip", func(w io.Writer) writer { return gzip.NewWriter(w) }},
	{"x-gzip", "x-gzip", func(w io.Writer) writer { return gzip.NewWriter(w) }},
	{"deflate", "zlib", func(w io.Writer) writer { return zlib.NewWriter(w) }},
	{"deflate", "bare deflate", func(w io.Writer) writer { z, _ := flate.NewWriter(w, 9); return z }},
	{"deflate", "stored deflate", func(w io.Writer) writer { z, _ := flate.NewWriter(w, 0); return z }},
	{"br", "br", func(w io.Writer) writer { return brotli.NewWriterLevel(w, 5) }},
	{"zstd", "zstd", func(w io.Writer) writer { z, _ := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1)); return z }},
}

func code(t testing.TB, open func(io.Writer) writer, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := open(&b)
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	must.OK(t, w.Close())
	return b.Bytes()
}

func decoded(body io.Reader, names ...string) ([]byte, error) {
	r, err := decode.NewReader(body, names, nil)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

func text(n int) []byte {
	rnd := rand.New(rand.NewPCG(1, 2))
	var b bytes.Buffer
	for b.Len() < n {
		fmt.Fprintf(&b, "%d and %x, ", rnd.IntN(100), rnd.Uint32())
	}
	return b.Bytes()[:n]
}

func TestList(t *testing.T) {
	tests := []struct {
		values []string
		want   []string
	}{
		{nil, nil},
		{[]string{""}, nil},
		{[]string{"identity"}, nil},
		{[]string{"GZIP"}, []string{"gzip"}},
		{[]string{"gzip, br", "identity,, zstd "}, []string{"gzip", "br", "zstd"}},
	}
	for _, test := range tests {
		if diff := cmp.Diff(decode.List(test.values), test.want); diff != "" {
			t.Errorf("%q: %s", test.values, diff)
		}
	}
}

func TestDecode(t *testing.T) {
	for _, c := range codings {
		for _, n := range []int{0, 1, 1000, 200_000} {
			want := text(n)
			coded := code(t, c.writer, want)
			for name, body := range map[string]io.Reader{"whole": bytes.NewReader(coded), "in halves": iotest.HalfReader(bytes.NewReader(coded)), "with EOF": iotest.DataErrReader(bytes.NewReader(coded))} {
				if got, err := decoded(body, c.name); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%s of %d bytes, %s: %d bytes, %v", c.format, n, name, len(got), err)
				}
			}
		}
		if got, err := decoded(strings.NewReader(""), c.name); err != nil || len(got) > 0 {
			t.Errorf("%s of nothing at all: %q, %v", c.format, got, err)
		}
	}
}

// A body may come in any pieces, also when what is left of it after a flush does.
func TestDecodePieces(t *testing.T) {
	for _, c := range codings {
		for n := 0; n < 300; n++ {
			if c.name != "br" {
				n += 40 // it is br that has been wrong, of one text in 300
			}
			coded := code(t, c.writer, text(n))
			for cut := max(0, len(coded)-4); cut < len(coded); cut++ {
				body := io.MultiReader(bytes.NewReader(coded[:cut]), iotest.OneByteReader(bytes.NewReader(coded[cut:])))
				if got, err := decoded(body, c.name); err != nil || !bytes.Equal(got, text(n)) {
					t.Fatalf("%s of %d bytes, the last %d one by one: %d bytes, %v", c.format, n, len(coded)-cut, len(got), err)
				}
			}
		}
	}
}

func TestDecodeStacked(t *testing.T) {
	body := text(5000)
	names := []string{}
	for _, i := range []int{5, 6} {
		body = code(t, codings[i].writer, body)
		names = append(names, codings[i].name)
	}
	if got, err := decoded(bytes.NewReader(body), names...); err != nil || !bytes.Equal(got, text(5000)) {
		t.Errorf("%v: %d bytes, %v", names, len(got), err)
	}
}

func TestUnknown(t *testing.T) {
	for _, names := range [][]string{{"compress"}, {"aes128gcm"}, {"dcz"}, {"sk-live-0123456789"}, {"gzip", "exi"}, {"gzip", "gzip", "gzip", "gzip"}} {
		_, err := decode.NewReader(strings.NewReader(""), names, nil)
		if !errors.Is(err, decode.ErrUnknown) || strings.Contains(err.Error(), "sk-live") {
			t.Errorf("%q: %v", names, err)
		}
	}
}

// A flushed part comes out before anything more goes in.
func TestFlushedPartsComeAtOnce(t *testing.T) {
	for _, c := range codings {
		for _, stacked := range []bool{false, true} {
			t.Run(fmt.Sprint(c.format, stacked), func(t *testing.T) {
				in, out := io.Pipe()
				names := []string{c.name}
				w := c.writer(out)
				flush := w.Flush
				if stacked {
					outer := gzip.NewWriter(out)
					w = c.writer(outer)
					names = append(names, "gzip")
					flush = func() error { return errors.Join(w.Flush(), outer.Flush()) }
				}
				r, err := decode.NewReader(in, names, nil)
				must.OK(t, err)
				next := make(chan string)
				done := make(chan error, 1)
				go func() {
					for event := range next {
						if _, err := io.WriteString(w, event); err != nil {
							done <- err
						}
						if err := flush(); err != nil {
							done <- err
						}
					}
					done <- out.CloseWithError(errors.New("reset"))
				}()
				for i := range 40 {
					want := fmt.Sprintf("data: %d%s\n\n", i, text(i*i*10))
					next <- want
					got := make([]byte, len(want))
					if _, err := io.ReadFull(r, got); err != nil || string(got) != want {
						t.Fatalf("event %d: %q, %v", i, got, err)
					}
				}
				close(next)
				if n, err := r.Read(make([]byte, 100)); n != 0 || err == nil || err == io.EOF {
					t.Errorf("after the reset: %d, %v", n, err)
				}
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// once fails once, and is at its end after that.
type once struct{ err error }

func (o *once) Read([]byte) (int, error) {
	err := o.err
	o.err = io.EOF
	return 0, err
}

func TestBrokenBodiesAreNotComplete(t *testing.T) {
	reset := errors.New("connection reset")
	for _, c := range codings {
		coded := code(t, c.writer, text(3000))
		for n := 1; n < len(coded); n++ {
			if _, err := decoded(bytes.NewReader(coded[:n]), c.name); err == nil {
				t.Errorf("%s cut to %d of %d bytes is complete", c.format, n, len(coded))
			}
		}
		for _, n := range []int{0, 1, len(coded) / 2, len(coded)} {
			body := io.MultiReader(bytes.NewReader(coded[:n]), &once{reset})
			if _, err := decoded(body, c.name); !errors.Is(err, reset) {
				t.Errorf("%s that was reset after %d of %d bytes: %v", c.format, n, len(coded), err)
			}
		}
		for _, more := range [][]byte{[]byte("x"), []byte("sk-live"), text(100_000)} {
			if _, err := decoded(bytes.NewReader(append(coded[:len(coded):len(coded)], more...)), c.name); err == nil {
				t.Errorf("%s may go on for %d bytes after its end", c.format, len(more))
			}
		}
		if _, err := decoded(bytes.NewReader(text(100)), c.name); err == nil {
			t.Errorf("%s may be text", c.format)
		}
	}
	// Where one member of several ends is not the end.
	for _, i := range []int{0, 6} {
		c := codings[i]
		coded := code(t, c.writer, text(3000))
		if got, err := decoded(bytes.NewReader(append(coded, coded...)), c.name); err != nil || len(got) != 6000 {
			t.Errorf("%s twice: %d bytes, %v", c.format, len(got), err)
		}
		r, _ := decode.NewReader(io.MultiReader(bytes.NewReader(coded), &once{io.ErrUnexpectedEOF}), []string{c.name}, nil)
		for range 2 { // an error stays
			if _, err := io.ReadAll(r); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s cut off after a member: %v", c.format, err)
			}
		}
	}
}

func TestBombs(t *testing.T) {
	zeros := make([]byte, 1<<20)
	bomb := func(open func(io.Writer) writer) []byte { return bytes.Repeat(code(t, open, zeros), 80) }
	var br bytes.Buffer
	w := brotli.NewWriterLevel(&br, 0)
	for range 80 {
		w.Write(zeros)
	}
	w.Close()
	tests := []struct {
		name    string
		body    []byte
		codings []string
		bad     bool
	}{
		{"gzip", bomb(codings[0].writer), []string{"gzip"}, false},
		{"gzip in gzip", code(t, codings[0].writer, bomb(codings[0].writer)), []string{"gzip", "gzip"}, true},
		{"br", br.Bytes(), []string{"br"}, true},
		{"zstd", bomb(codings[6].writer), []string{"zstd"}, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r, err := decode.NewReader(bytes.NewReader(test.body), test.codings, nil)
			must.OK(t, err)
			n, err := io.Copy(io.Discard, r)
			if errors.Is(err, decode.ErrBomb) != test.bad || test.bad && n > 65<<20 || !test.bad && (err != nil || n != 80<<20) {
				t.Errorf("%d MiB, %v", n>>20, err)
			}
		})
	}
	t.Run("inside", func(t *testing.T) {
		// Very many empty blocks become nothing.
		var coded bytes.Buffer
		outer, _ := zstd.NewWriter(&coded)
		empty := bytes.Repeat([]byte{0, 0, 0, 0xFF, 0xFF}, 1<<17)
		for range 128 {
			outer.Write(empty)
		}
		outer.Close()
		r, err := decode.NewReader(&coded, []string{"deflate", "zstd"}, nil)
		must.OK(t, err)
		if n, err := io.Copy(io.Discard, r); !errors.Is(err, decode.ErrBomb) || n > 0 {
			t.Errorf("%d bytes, %v", n, err)
		}
	})
}

func TestWindows(t *testing.T) {
	for _, test := range []struct {
		name   string
		window int
		ok     bool
	}{{"8 MiB", 8 << 20, true}, {"16 MiB", 16 << 20, false}} {
		var coded bytes.Buffer
		w, err := zstd.NewWriter(&coded, zstd.WithWindowSize(test.window), zstd.WithEncoderConcurrency(1))
		must.OK(t, err)
		w.Write(text(1000))
		w.Flush() // before the size is known
		w.Close()
		if _, err := decoded(&coded, "zstd"); (err == nil) != test.ok {
			t.Errorf("zstd with a window of %s: %v", test.name, err)
		}
	}
	// The large window of brotli is an extension that no browser takes: 0x11 and
	// the size of the window.
	if _, err := decoded(bytes.NewReader([]byte{0x11, 30, 3}), "br"); err == nil {
		t.Error("br with a large window is decoded")
	}
}

// standard decodes with the standard library, in each of a coding's formats.
func standard(name string, body []byte) (readings [][]byte) {
	open := map[string][]func(io.Reader) (io.Reader, error){
		"gzip":    {func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }},
		"deflate": {func(r io.Reader) (io.Reader, error) { return zlib.NewReader(r) }, func(r io.Reader) (io.Reader, error) { return flate.NewReader(r), nil }},
	}
	for _, open := range open[strings.TrimPrefix(name, "x-")] {
		r, err := open(bytes.NewReader(body))
		if err != nil {
			continue
		}
		if text, err := io.ReadAll(io.LimitReader(r, 1<<20)); err == nil {
			readings = append(readings, text)
		}
	}
	return readings
}

// FuzzReader decodes anything: what it makes of it does not depend on the pieces
// in which it comes, and a client that has the standard library reads it too.
func FuzzReader(f *testing.F) {
	for i, c := range codings {
		f.Add(code(f, c.writer, text(500)), uint8(i), uint8(0))
		f.Add(code(f, codings[0].writer, code(f, c.writer, text(500))), uint8(i), uint8(1))
	}
	f.Fuzz(func(t *testing.T, body []byte, first, second uint8) {
		names := []string{codings[int(first)%len(codings)].name}
		if second > 0 {
			names = append(names, codings[int(second-1)%len(codings)].name)
		}
		read := func(r io.Reader) ([]byte, error) {
			d, err := decode.NewReader(r, names, nil)
			must.OK(t, err)
			return io.ReadAll(io.LimitReader(d, 1<<20))
		}
		want, wantErr := read(bytes.NewReader(body))
		got, err := read(iotest.OneByteReader(bytes.NewReader(body)))
		if (err == nil) != (wantErr == nil) || err == nil && !bytes.Equal(got, want) {
			t.Errorf("%v: %d bytes, %v; in pieces %d bytes, %v", names, len(want), wantErr, len(got), err)
		}
		readings := standard(names[0], body)
		if len(names) == 1 && names[0] != "br" && names[0] != "zstd" && len(body) > 0 && wantErr == nil &&
			!slices.ContainsFunc(readings, func(text []byte) bool { return bytes.Equal(text, want) }) {
			t.Errorf("%v: %q, but %q to the standard library", names, want, readings)
		}
	})
}
