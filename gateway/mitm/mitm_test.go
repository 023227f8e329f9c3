package mitm

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sallyport/internal/test/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCacheIsBounded(t *testing.T) {
	l := NewLeaves(nil, time.Now)
	for i := range maxConfigs + 50 {
		l.configs.Add(leafKey{"x", string(rune(i))}, &leafConfig{})
	}
	if got := l.configs.Len(); got != maxConfigs {
		t.Errorf("%d configurations held, want %d", got, maxConfigs)
	}
}

// TestForgetWinsOverSigning: once Forget or ForgetAll has returned, nothing that was being
// signed meanwhile is given out.
func TestForgetWinsOverSigning(t *testing.T) {
	errForgotten := errors.New("forgotten")
	var mu sync.Mutex
	known := false
	set := func(is bool) { mu.Lock(); known = is; mu.Unlock() }
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	l := NewLeaves(func(_, name string, public *ecdsa.PublicKey) ([][]byte, error) {
		c := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
		der, err := x509.CreateCertificate(rand.Reader, c, c, public, key)
		mu.Lock()
		defer mu.Unlock()
		if !known {
			return nil, errForgotten
		}
		return [][]byte{der}, err
	}, time.Now)
	for round := range 20 {
		set(true)
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() { _, _ = l.ServerConfig("a", fmt.Sprintf("n%d-%d.example.test", round, i)) })
		}
		set(false)
		if round%2 == 0 {
			l.Forget("a")
		} else {
			l.ForgetAll()
		}
		for i := range 4 {
			if _, err := l.ServerConfig("a", fmt.Sprintf("n%d-%d.example.test", round, i)); !errors.Is(err, errForgotten) {
				t.Fatalf("got %v, want %v", err, errForgotten)
			}
		}
		wg.Wait()
		if n := l.configs.Len(); n != 0 {
			t.Fatalf("%d configurations of a forgotten sandbox are held", n)
		}
	}
}
