package exchange

import (
	"context"
	"errors"

	"sallyport/gateway/credential"
	"sallyport/policy"
)

// Check says why the fields of a secret can never be exchanged, or nil: one is missing, or
// is not the key that it should be. It talks to nobody.
func Check(e policy.Exchange, fields map[string]credential.Secret) error {
	s, err := New(Options{Exchange: e, Keeper: NewKeeper(nil)})
	if err != nil {
		return nil // it is the exchange's fault, which is told elsewhere
	}
	defer s.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // whatever would be sent is not
	_, err = s.exchange(ctx, credential.Material{Fields: fields})
	if errors.Is(err, credential.ErrNoSecret) || errors.Is(err, credential.ErrRefused) {
		return err
	}
	return nil
}
