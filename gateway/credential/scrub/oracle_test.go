package scrub_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/gateway/credential/scrub"
	"sallyport/internal/test/must"
)

// script gives a text in pieces of its own choice, and ends as it chooses.
type script struct {
	pieces []string
	end    error
}

func (s *script) Read(p []byte) (int, error) {
	if len(s.pieces) == 0 {
		return 0, s.end
	}
	n := copy(p, s.pieces[0])
	if s.pieces[0] = s.pieces[0][n:]; s.pieces[0] == "" {
		s.pieces = s.pieces[1:]
	}
	return n, nil
}

// shape is all that can be seen of what comes out but for its bytes: how much had
// come in when each piece went out, how long it is, and how it ends.
func shape(read func(io.Reader) io.Reader, pieces []string, end error) (seen, text string) {
	in := &script{append([]string(nil), pieces...), end}
	var b, all strings.Builder
	r := read(in)
	for buf := make([]byte, 8<<10); ; {
		n, err := r.Read(buf)
		left := 0
		for _, p := range in.pieces {
			left += len(p)
		}
		fmt.Fprintf(&b, "%d at -%d; ", n, left)
		all.Write(buf[:n])
		if err != nil {
			return b.String() + err.Error(), all.String()
		}
	}
}

// The output, its times and its end are the same whatever the secret is, as long as it has the
// same length and is not in the text as a whole. The author of the text knows all of the
// secret but its end.
func TestNothingTellsAPart(t *testing.T) {
	broken := errors.New("reset")
	kinds := map[string]struct {
		wrap func(*rand.Rand, []string) []string // pieces of a text, as they are sent
		read func(*scrub.Scrubber) func(io.Reader) io.Reader
	}{
		"body": {func(_ *rand.Rand, pieces []string) []string { return pieces }, func(s *scrub.Scrubber) func(io.Reader) io.Reader {
			return func(r io.Reader) io.Reader { return s.Reader(io.NopCloser(r), nil) }
		}},
		"frames": {func(rnd *rand.Rand, pieces []string) []string {
			op := byte(1)
			out := make([]string, len(pieces))
			for i, p := range pieces {
				out[i] = string(frame{op, p}.bytes())
				if op = 0; rnd.IntN(4) == 0 {
					out[i], op = string(frame{out[i][0] | 0x80, p}.bytes()), 1
				}
			}
			return out
		}, func(s *scrub.Scrubber) func(io.Reader) io.Reader {
			return func(r io.Reader) io.Reader { return s.Frames(r, nil, nil) }
		}},
		"messages": {func(rnd *rand.Rand, pieces []string) []string {
			all := strings.Join(pieces, "")
			at := rnd.IntN(len(all) + 1)
			all = string(message{0, all[:at]}.bytes()) + string(message{0, all[at:]}.bytes())
			return []string{all[:len(all)/3], all[len(all)/3:]}
		}, func(s *scrub.Scrubber) func(io.Reader) io.Reader {
			return func(r io.Reader) io.Reader {
				resp := &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/grpc"}}, Body: io.NopCloser(r)}
				if err := s.Response(resp, nil); err != nil {
					return &script{end: err}
				}
				return resp.Body
			}
		}},
		"streams": {func(rnd *rand.Rand, pieces []string) []string {
			all := strings.Join(pieces, "")
			at := rnd.IntN(len(all) + 1)
			all = string(watched(all[:at])) + string(watched(all[at:]))
			return []string{all[:len(all)/3], all[len(all)/3:]}
		}, func(s *scrub.Scrubber) func(io.Reader) io.Reader {
			return func(r io.Reader) io.Reader {
				resp := &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/vnd.kubernetes.protobuf;stream=watch"}}, Body: io.NopCloser(r)}
				if err := s.Response(resp, nil); err != nil {
					return &script{end: err}
				}
				return resp.Body
			}
		}},
	}
	const alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/=%&\\\" -_"
	for name, kind := range kinds {
		for seed := range uint64(400) {
			rnd := rand.New(rand.NewPCG(seed, 9))
			random := func(n int) string {
				b := make([]byte, n)
				for i := range b {
					b[i] = alphabet[rnd.IntN(len(alphabet))]
				}
				return string(b)
			}
			n := 16 + rnd.IntN(60)
			one, two := random(n-1)+"!", random(n-1)+"!" // which is nowhere in the text
			var pieces []string
			for range 1 + rnd.IntN(12) {
				known := one[:rnd.IntN(n)]
				switch rnd.IntN(7) {
				case 0:
					known = hex.EncodeToString([]byte(known))
				case 1:
					known = base64.StdEncoding.EncodeToString([]byte(strings.Repeat("z", rnd.IntN(3)) + known))
				case 2:
					known = url.QueryEscape(known)
				case 3:
					known = each(`\u%04x`, known)
				case 4:
					known = each("&#%d;", known)
				}
				known = known[:len(known)-min(len(known), rnd.IntN(4))]
				switch rnd.IntN(5) {
				case 0:
					known = strings.Repeat(known+"~", 1+rnd.IntN(100))
				case 1:
					known += "\n"
				case 2:
					known += strings.Repeat("\r\n", rnd.IntN(3)) + known
				case 3:
					known = random(rnd.IntN(3000)) + known
				}
				if known != "" {
					pieces = append(pieces, known)
				}
			}
			if len(pieces) == 0 {
				continue
			}
			pieces = kind.wrap(rnd, pieces)
			end := []error{io.EOF, broken}[rnd.IntN(2)]
			seenOne, textOne := shape(kind.read(scrubber(one, "Bearer "+one)), pieces, end)
			seenTwo, textTwo := shape(kind.read(scrubber(two, "Bearer "+two)), pieces, end)
			if seenOne != seenTwo || textOne != textTwo {
				t.Fatalf("%s, seed %d, %q in %.2000q:\n%s\n%s", name, seed, one, pieces, seenOne, seenTwo)
			}
		}
	}
}

// A text that has a secret's beginning, with what makes that long to read on from, takes no
// longer than one with another beginning. It took ten times as long. The times compared are
// the processor's of this thread: other processes take none of it.
func TestTimeTellsNoBeginning(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	spent := func() time.Duration {
		var now unix.Timespec
		must.OK(t, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now))
		return time.Duration(now.Nano())
	}
	const secret = "ghp_R7tQ2mVx9LkZ4sWnB8yHcJ3fDpT6aEuG1oKi"
	s := scrubber(secret, "Bearer "+secret)
	took := func(unit string) time.Duration {
		body, buf := []byte(strings.Repeat(unit, 1+(64<<10)/len(unit))), make([]byte, 32<<10)
		best := time.Hour
		for range 10 {
			begin := spent()
			for r := s.Reader(io.NopCloser(bytes.NewReader(body)), nil); ; {
				if _, err := r.Read(buf); err != nil {
					break
				}
			}
			best = min(best, spent()-begin)
		}
		return best
	}
	digits := base64.StdEncoding.EncodeToString([]byte("Bearer " + secret))
	for _, after := range []string{strings.Repeat(`\n`, 300) + "!", strings.Repeat("&#10;", 100) + "!", "\n\n", `\/`} {
		for _, known := range []int{9, 20, 40} {
			right, wrong := took(digits[:known+1]+after), took(digits[:known]+"~"+after)
			if right > 3*wrong {
				t.Errorf("%d digits and then %.10q: %v if they are right, %v else", known, after, right, wrong)
			}
		}
	}
}
