package daemon

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/internal/config"
	"sallyport/internal/test/must"
)

// A file that is written in pieces is loaded once, when it is whole, however slowly the
// pieces follow each other: at each look it is another one than at the look before.
func TestFollowTakesNoPart(t *testing.T) {
	const whole = "one\ntwo\nthree\nfour\nfive\nsix\nseven\n"
	for _, pause := range []time.Duration{time.Millisecond, lookEvery / 5, lookEvery - time.Millisecond} {
		t.Run(pause.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "sallyport.yaml")
				must.OK(t, os.WriteFile(path, []byte("as it was\n"), 0o600))
				printed := config.NewPrint(path)
				var looks atomic.Int32
				var loaded atomic.Value
				loaded.Store("")
				ctx, end := context.WithCancel(t.Context())
				ended := make(chan error)
				go func() {
					ended <- follow(ctx, func() (now config.Print, due, ok bool) {
						looks.Add(1)
						now = config.NewPrint(path)
						return now, now != printed, true
					}, func() {
						printed = config.NewPrint(path)
						text, err := os.ReadFile(path)
						must.OK(t, err)
						loaded.Store(loaded.Load().(string) + string(text))
					})
				}()
				time.Sleep(10*lookEvery + lookEvery/2) // no piece is written as a look is taken
				synctest.Wait()
				if text := loaded.Load(); text != "" {
					t.Errorf("what has not changed was loaded: %q", text)
				}
				looks.Store(0)
				f, err := os.Create(path)
				must.OK(t, err)
				for piece := range strings.SplitAfterSeq(whole, "\n") {
					_, err := f.WriteString(piece)
					must.OK(t, err)
					time.Sleep(pause)
					synctest.Wait()
				}
				must.OK(t, f.Close())
				if n := looks.Load(); pause > lookEvery/2 && n < 5 {
					t.Errorf("%d looks at the pieces", n)
				}
				time.Sleep(10 * lookEvery)
				synctest.Wait()
				if text := loaded.Load(); text != whole {
					t.Errorf("loaded: %q", text)
				}
				end()
				must.OK(t, <-ended)
			})
		})
	}
}
