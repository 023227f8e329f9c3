package upstream

import (
	"bytes"
	"io"
	"net"
	"testing"
	"testing/iotest"

	"golang.org/x/net/http2"
)

// received is a connection on which all has come already.
type received struct {
	net.Conn
	io.Reader
}

func (r received) Read(p []byte) (int, error) { return r.Reader.Read(p) }

// written returns frames as bytes.
func written(f func(*http2.Framer)) []byte {
	var b bytes.Buffer
	w := http2.NewFramer(&b, nil)
	w.AllowIllegalWrites = true
	f(w)
	return b.Bytes()
}

func settings(size uint32) func(*http2.Framer) {
	return func(f *http2.Framer) {
		_ = f.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1 << 20}, http2.Setting{ID: http2.SettingMaxFrameSize, Val: size})
		_ = f.WritePing(false, [8]byte{1})
	}
}

func TestFramesAreNoLargerThanOurs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		sent     []byte
		received []byte
	}{
		{"larger", written(settings(1 << 20)), written(settings(maxFrame))},
		{"largest", written(settings(1<<24 - 1)), written(settings(maxFrame))},
		{"the same", written(settings(maxFrame)), written(settings(maxFrame))},
		{"smaller", written(settings(16 << 10)), written(settings(16 << 10))},
		{"beyond what is legal", written(settings(1 << 24)), written(settings(1 << 24))},
		{"none", written(func(f *http2.Framer) { _ = f.WriteSettings() }), written(func(f *http2.Framer) { _ = f.WriteSettings() })},
		{"no settings", []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), []byte("HTTP/1.1 400 Bad Request\r\n\r\n")},
		{"of a size that settings do not have", []byte("\x00\x00\x07\x04\x00\x00\x00\x00\x00\x00\x05\x00\x10\x00\x00\x00"), []byte("\x00\x00\x07\x04\x00\x00\x00\x00\x00\x00\x05\x00\x10\x00\x00\x00")},
	} {
		for way, r := range map[string]io.Reader{"at once": bytes.NewReader(tt.sent), "byte by byte": iotest.OneByteReader(bytes.NewReader(tt.sent))} {
			t.Run(tt.name+" "+way, func(t *testing.T) {
				got, err := io.ReadAll(&greeting{Conn: received{Reader: r}})
				if err != nil || !bytes.Equal(got, tt.received) {
					t.Errorf("got %q %v, want %q", got, err, tt.received)
				}
			})
		}
	}
	if _, err := io.ReadAll(&greeting{Conn: received{Reader: bytes.NewReader(written(settings(1))[:20])}}); err != io.ErrUnexpectedEOF {
		t.Errorf("half of it: %v", err)
	}
}

// FuzzGreeting holds what comes through against what was sent: only the size of
// frames may differ, and what the library reads of it is no larger than ours.
func FuzzGreeting(f *testing.F) {
	f.Add(written(settings(1 << 20)))
	f.Add(written(func(f *http2.Framer) { _ = f.WriteSettings() }))
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		got, err := io.ReadAll(&greeting{Conn: received{Reader: bytes.NewReader(sent)}})
		if err != nil {
			if len(got) > 0 {
				t.Fatalf("%q and then %v", got, err)
			}
			return
		}
		if len(got) != len(sent) {
			t.Fatalf("%d bytes became %d", len(sent), len(got))
		}
		for i := range sent {
			if sent[i] != got[i] && (i < 9 || sent[3] != byte(http2.FrameSettings)) {
				t.Fatalf("byte %d was changed", i)
			}
		}
		frame, err := http2.NewFramer(nil, bytes.NewReader(got)).ReadFrame()
		if s, ok := frame.(*http2.SettingsFrame); ok && err == nil && s.NumSettings() <= 64 {
			_ = s.ForeachSetting(func(s http2.Setting) error {
				if s.ID == http2.SettingMaxFrameSize && s.Valid() == nil && s.Val > maxFrame {
					t.Errorf("frames of %d bytes", s.Val)
				}
				return nil
			})
		}
	})
}
