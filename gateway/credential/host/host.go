// Package host has the credential sources that are on the daemon's own machine: a variable
// of its environment, a file or a folder of files, and the output of a command.
//
// All of them are read by the daemon alone. None of what they give is in the environment or
// the arguments of another process, nor in an error.
package host

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"

	"sallyport/gateway/credential"
)

// maxValue bounds one field, in bytes, as in the embedded store; maxFields their number.
const (
	maxValue  = 64 << 10
	maxFields = 32
)

// taken are the variables that were read, which are in the environment no more.
var taken struct {
	sync.Mutex
	values map[string]credential.Secret
}

// Env is a variable of the environment that the daemon was started with, as field token.
type Env struct{ name string }

// NewEnv takes the variable out of the process's environment, so that no process that it
// starts later has it. A variable that was taken once is there for a later Env of the name.
func NewEnv(name string) *Env {
	taken.Lock()
	defer taken.Unlock()
	if value, ok := os.LookupEnv(name); ok {
		if taken.values == nil {
			taken.values = map[string]credential.Secret{}
		}
		taken.values[name] = credential.NewSecret(strings.TrimSuffix(value, "\n"))
		_ = os.Unsetenv(name) // it fails for no name that is set
	}
	return &Env{name}
}

// Read implements credential.Source. The value has no version: it is the process's.
func (e *Env) Read(context.Context) (credential.Material, error) {
	taken.Lock()
	defer taken.Unlock()
	value, ok := taken.values[e.name]
	if !ok || value.Reveal() == "" {
		return credential.Material{}, fmt.Errorf("%w: the daemon's environment has no %s; set it in its unit or container, and start it again", credential.ErrNoSecret, e.name)
	}
	if len(value.Reveal()) > maxValue {
		return credential.Material{}, fmt.Errorf("%w: %s has more than %d bytes", credential.ErrNoSecret, e.name, maxValue)
	}
	return credential.Material{Fields: map[string]credential.Secret{"token": value}}, nil
}
