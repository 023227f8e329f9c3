package sink

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"
)

// Hurry shortens what a test would wait for.
func (o *Options) Hurry(try, within time.Duration) {
	o.firstTry, o.lastTry, o.sendWithin = try, 20*try, within
	o.lookEvery, o.measureEvery = 3*time.Millisecond, 20*time.Millisecond
}

// Login is the Kafka sink's.
func Login(mechanism string, fields map[string]string) sasl.Mechanism {
	return login(mechanism, func(context.Context) (map[string]string, error) { return fields, nil })
}
