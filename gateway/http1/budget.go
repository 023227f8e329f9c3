package http1

import (
	"context"
	"errors"
	"net/http"
	"strings"
)

// Bounds of the fields in one head, and of those after one body. A field takes a few
// hundred bytes of memory once it is parsed, and as few as four where it is sent.
const (
	MaxFields   = 1000
	MaxTrailers = 100
)

// Bytes of memory that a head takes while its message is under way.
const (
	freeHead  = 32 << 10 // that every message may have, uncounted
	fieldCost = 256
	keyCost   = 64 // of a key in a request's query
)

// Budget counts the memory of large heads. It is safe for concurrent use.
type Budget interface {
	// Take makes room for n bytes more. Its error says that there is none.
	Take(n int64) error
	// Release gives back all that was taken.
	Release()
}

type budgetKey struct{}

// BudgetKey is the key of a request's context for the Budget of the answers to it.
// The maker of the Budget releases it when the answer's head is no longer needed.
var BudgetKey any = budgetKey{}

// Errors of Charge.
var (
	// ErrFields is a head, or what follows a body, with too many fields or bytes.
	ErrFields = errors.New("there are too many header fields, or too large ones")
	// ErrBudget is a head for which a Budget has no room.
	ErrBudget = errors.New("the large heads of messages that are under way take all the memory that there is for them")
)

// Charge counts the fields of an answer against the Budget of its request's context,
// and bounds their number.
func Charge(ctx context.Context, fields http.Header, most int) error {
	n, size := Measure(fields)
	if n > most {
		return ErrFields
	}
	b, _ := ctx.Value(BudgetKey).(Budget)
	return take(b, Cost(size, n, 0))
}

// Measure returns the number of fields and their size, in bytes.
func Measure(fields http.Header) (n, size int) {
	for name, values := range fields {
		n += max(len(values), 1) // one that was announced has none yet
		for _, v := range values {
			size += len(name) + len(v)
		}
	}
	return n, size
}

// Cost is roughly the memory, in bytes, of a head with so many bytes, fields and query
// keys; 0 where it is too little to count.
func Cost(size, fields, keys int) int64 {
	n := int64(2*size + fieldCost*fields + keyCost*keys)
	if n <= freeHead {
		return 0
	}
	return n
}

// Keys is the largest number of keys that the query of a request's target can have.
func Keys(target string) int { return strings.Count(target, "&") + strings.Count(target, ";") }

func take(b Budget, n int64) error {
	if b == nil || n <= 0 {
		return nil
	}
	if err := b.Take(n); err != nil {
		return errors.Join(ErrBudget, err)
	}
	return nil
}
