package auditlog

import (
	"errors"
	"fmt"
	"iter"
)

// DamageError is a place at which the log is not as it was written.
type DamageError struct {
	File   string
	Offset int64 // bytes from the start of File
	Reason string
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("audit log damaged: %s at byte %d: %s", e.File, e.Offset, e.Reason)
}

// Undamaged yields what list yields, without damage: `sallyport audit verify` reports that.
func Undamaged[T any](list iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for v, err := range list {
			var damage *DamageError
			if errors.As(err, &damage) {
				continue
			}
			if !yield(v, err) {
				return
			}
		}
	}
}
