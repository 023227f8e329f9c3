package gatehouse

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"

	"go.uber.org/goleak"

	"sallyport/internal/ipc"
)

// The test binary is the process too: a Warden starts it again as one.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "gateway" {
		if err := play(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// takenFile says, in the root of a process, how one that was taken over there
// treats the policies that it is told of.
const takenFile = "/taken"

// play is Run, but for what takenFile says.
func play() error {
	in, err := Enter()
	if err != nil {
		return err
	}
	how, err := os.ReadFile(takenFile)
	if err != nil {
		return in.peer.Serve()
	}
	refuse := ipc.Handle(func(context.Context, PolicyRequest) (ipc.None, error) { return ipc.None{}, errors.New("I will not") })
	stall := ipc.Handle(func(ctx context.Context, _ PolicyRequest) (ipc.None, error) {
		<-ctx.Done()
		return ipc.None{}, ctx.Err()
	})
	switch string(how) {
	case "refuses to prepare":
		in.Methods[MethodPrepare] = refuse
	case "never prepares":
		in.Methods[MethodPrepare] = stall
	case "dies preparing":
		in.Methods[MethodPrepare] = ipc.Handle(func(context.Context, PolicyRequest) (ipc.None, error) { os.Exit(9); return ipc.None{}, nil })
	case "refuses to prepare, and spins":
		in.Methods[MethodPrepare] = refuse
		runtime.GOMAXPROCS(60)
		for range 60 {
			go func() {
				for {
				}
			}()
		}
	case "refuses to use":
		in.Methods[MethodUse] = refuse
	case "never uses":
		in.Methods[MethodUse] = stall
	}
	return in.peer.Serve()
}
