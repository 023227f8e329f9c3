package credential_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"sallyport/gateway/credential"
	"sallyport/gateway/credential/scrub"
	"sallyport/gateway/credential/sent"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// leased returns a lease of a credential that has been applied.
func leased(t testing.TB, name string, material fields) *credential.Lease {
	t.Helper()
	l, err := broker(map[string]credential.Source{name: material}).Lease(t.Context(), name, api)
	must.OK(t, err)
	must.OK(t, l.Apply(request(t, "https://api.example.com/v1"), policy.Inject{}))
	return l
}

// says tells whose value is found.
func says(s *scrub.Scrubber, text string) (names string) {
	s.Header(http.Header{"X-Echo": {text}}, func(f scrub.Found) { names += f.Name })
	return names
}

func numbered(n int) string { return fmt.Sprintf("sk-%08d-secret", n) }

func TestExposure(t *testing.T) {
	var all sent.BySandbox
	e := all.Of("sb-1")
	s := e.Scrubber()
	held, lost, err := e.Add(context.Background(), leased(t, "first", fields{"token": numbered(0)}))
	if err != nil || len(lost) > 0 {
		t.Fatal(lost, err)
	}
	for n := 1; n < sent.Max; n++ {
		u, lost, err := e.Add(context.Background(), leased(t, "others", fields{"token": numbered(n)}))
		if err != nil || len(lost) > 0 {
			t.Fatal(n, lost, err)
		}
		e.Release(u)
	}
	for _, n := range []int{0, 1, sent.Max - 1} {
		if says(s, numbered(n)) == "" {
			t.Errorf("value %d is not looked for", n)
		}
	}
	// The oldest that nothing under way was sent with goes.
	u, lost, err := e.Add(context.Background(), leased(t, "last", fields{"token": numbered(999)}))
	if err != nil || len(lost) != 1 || lost["others"] != 1 {
		t.Fatal(lost, err)
	}
	for n, want := range map[int]string{0: "first", 1: "", 2: "others", 999: "last"} {
		if got := says(s, numbered(n)); got != want {
			t.Errorf("value %d is %q's, want %q", n, got, want)
		}
	}
	// A secret that is sent again is young again.
	e.Release(u)
	again := leased(t, "others", fields{"token": numbered(2)})
	if u, lost, err = e.Add(context.Background(), again); err != nil || len(lost) > 0 {
		t.Fatal(lost, err)
	}
	e.Release(u)
	if u, _, err = e.Add(context.Background(), leased(t, "more", fields{"token": numbered(1000)})); err != nil || says(s, numbered(2)) == "" || says(s, numbered(3)) != "" {
		t.Error("not the least recently sent has gone", err)
	}
	e.Release(u)
	e.Release(held)
	if got := fmt.Sprintf("%v %+v %#v %+v", e, e, e, u); strings.Contains(got, "secret") {
		t.Errorf("printing shows %s", got)
	}
	if all.Of("sb-2").Scrubber() == s || says(all.Of("sb-2").Scrubber(), numbered(999)) != "" {
		t.Error("another sandbox's answers are searched too")
	}
	all.Forget("sb-1")
	if says(all.Of("sb-1").Scrubber(), numbered(999)) != "" {
		t.Error("the sandbox is not forgotten")
	}
}

// Where all there is room for is in use, nothing more is sent.
func TestExposureCrowded(t *testing.T) {
	var all sent.BySandbox
	e := all.Of("sb-1")
	var uses []*sent.Use
	for n := range sent.Max {
		u, _, err := e.Add(context.Background(), leased(t, "key", fields{"token": numbered(n)}))
		if err != nil {
			t.Fatal(n, err)
		}
		uses = append(uses, u)
	}
	one := leased(t, "key", fields{"token": numbered(999)})
	if _, _, err := e.Add(context.Background(), one); !errors.Is(err, sent.ErrTooMany) {
		t.Errorf("error %v", err)
	}
	e.Release(uses[7])
	if _, lost, err := e.Add(context.Background(), one); err != nil || lost["key"] != 1 || says(e.Scrubber(), numbered(7)) != "" {
		t.Error(lost, err)
	}
}

// The bound is in bytes too; one secret alone may be larger.
func TestExposureOfLongSecrets(t *testing.T) {
	var all sent.BySandbox
	e := all.Of("sb-1")
	u, _, err := e.Add(context.Background(), leased(t, "small", fields{"token": numbered(1)}))
	must.OK(t, err)
	e.Release(u)
	long := fields{"token": numbered(2), "file": strings.Repeat("0123456789abcdef", 20<<10)}
	if u, lost, err := e.Add(context.Background(), leased(t, "long", long)); err != nil || lost["small"] != 1 || len(lost) != 1 {
		t.Error(u, lost, err)
	}
	if says(e.Scrubber(), numbered(1)) != "" || says(e.Scrubber(), numbered(2)) != "long" {
		t.Error("not what was sent last is looked for")
	}
}

// A sandbox that sends what it has sent before costs no new index.
func TestExposureAgain(t *testing.T) {
	var all sent.BySandbox
	e := all.Of("sb-1")
	l := leased(t, "key", fields{"token": numbered(1)})
	if n := testing.AllocsPerRun(100, func() {
		u, _, err := e.Add(context.Background(), l)
		must.OK(t, err)
		e.Release(u)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkExpose(b *testing.B) {
	for _, n := range []int{1, sent.Max} {
		b.Run(fmt.Sprint(n, " values anew"), func(b *testing.B) {
			b.ReportAllocs()
			var all sent.BySandbox
			e := all.Of("sb-1")
			i := 0
			for b.Loop() {
				if n == 1 {
					e = all.Of(fmt.Sprint(i))
				}
				i++
				u, _, err := e.Add(context.Background(), leased(b, "key", fields{"token": numbered(i)}))
				must.OK(b, err)
				e.Release(u)
			}
		})
	}
}

// slowKeep is a disk that takes as long for each save as the test says.
type slowKeep struct {
	saving chan sent.Saved
	done   chan error
}

func (slowKeep) Load(context.Context, string) (sent.Saved, error) {
	return sent.Saved{}, nil
}

func (k slowKeep) Save(_ context.Context, _ string, more sent.Saved) error {
	k.saving <- more
	return <-k.done
}

// A request whose credential is saved does not wait for the disk that another one waits for,
// and none is sent before its own is saved.
func TestSavingHoldsNothingElseUp(t *testing.T) {
	k := slowKeep{make(chan sent.Saved), make(chan error)}
	all := sent.BySandbox{Keep: k}
	e := all.Of("sb-1")
	add := func(l *credential.Lease) <-chan error {
		result := make(chan error, 1)
		go func() {
			use, _, err := e.Add(context.Background(), l)
			if err == nil {
				e.Release(use)
			}
			result <- err
		}()
		return result
	}
	wait := func(what string, result <-chan error) error {
		t.Helper()
		select {
		case err := <-result:
			return err
		case <-time.After(20 * time.Second):
			t.Fatal(what + " waits for the disk")
			return nil
		}
	}
	known, fresh := leased(t, "known", fields{"token": numbered(1)}), leased(t, "fresh", fields{"token": numbered(2)})
	first := add(known)
	<-k.saving
	k.done <- nil
	must.OK(t, wait("the first", first))

	slow := add(fresh)
	if more := <-k.saving; len(more.Values) != 1 || len(more.Sent) != 1 {
		t.Fatalf("%d values and %d hosts are saved", len(more.Values), len(more.Sent))
	}
	must.OK(t, wait("a request with what is saved", add(known)))
	asked := make(chan error, 1)
	go func() {
		if e.Sent(api.Host, "fresh") || !e.Sent(api.Host, "known") || says(e.Scrubber(), numbered(2)) != "fresh" {
			asked <- errors.New("what is being saved is not looked for yet, or counts as sent")
		}
		asked <- nil
	}()
	must.OK(t, wait("an answer", asked))
	second := add(fresh) // it is the same that has to be saved
	select {
	case err := <-second:
		t.Fatal("sent before it was saved", err)
	case err := <-slow:
		t.Fatal("sent before it was saved", err)
	default:
	}
	broken := errors.New("the disk is full")
	k.done <- broken
	if err := wait("the slow one", slow); !errors.Is(err, broken) || !errors.Is(err, sent.ErrUnsaved) {
		t.Error(err)
	}
	<-k.saving
	k.done <- nil
	must.OK(t, wait("the second", second))
	if !e.Sent(api.Host, "fresh") {
		t.Error("what was saved does not count as sent")
	}
	must.OK(t, wait("the third", add(fresh)))
}
