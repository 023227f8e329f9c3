package ipc_test

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"sallyport/internal/ipc"
	"sallyport/internal/test/must"
)

// faulty says what it has to say, and then err.
type faulty struct {
	io.Reader
	err error
}

func (f faulty) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		err = f.err
	}
	return n, err
}

// An end is told from what breaks off, whichever way it is read.
func TestPieces(t *testing.T) {
	said := bytes.Repeat([]byte("0123456789abcdef"), 10_000)
	broken := errors.New("it has broken off")
	for _, tt := range []struct {
		what      string
		err, want error
	}{{"an end", io.EOF, nil}, {"a break", broken, io.ErrUnexpectedEOF}} {
		for _, splice := range []bool{false, true} {
			here, there, err := ipc.Pair()
			must.OK(t, err)
			u, err := ipc.Inherited(there)
			must.OK(t, err)
			go func() {
				n, err := ipc.WritePieces(here, faulty{bytes.NewReader(said), tt.err})
				if n != int64(len(said)) || (err == nil) != (tt.want == nil) {
					t.Errorf("%s: wrote %d bytes, %v", tt.what, n, err)
				}
				_ = here.Close()
			}()
			var from io.Reader = ipc.NewPieces(u)
			if !splice {
				from = struct{ io.Reader }{from}
			}
			var got bytes.Buffer
			if _, err := io.Copy(&got, from); !errors.Is(err, tt.want) || !bytes.Equal(got.Bytes(), said) {
				t.Errorf("%s, by WriteTo %v: %d bytes, %v", tt.what, splice, got.Len(), err)
			}
			_ = u.Close()
		}
	}
}
