package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"

	"go.uber.org/goleak"

	"sallyport/gateway/worker"
	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
)

// The test binary is the process too: a Supervisor starts it again as one.
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

// play is worker.Run, but for what takenFile says.
func play() error {
	w, err := worker.Enter()
	if err != nil {
		return err
	}
	how, err := os.ReadFile(takenFile)
	if err != nil {
		return w.Serve()
	}
	refuse := ipc.Handle(func(context.Context, workerapi.PolicyRequest) (ipc.None, error) {
		return ipc.None{}, errors.New("I will not")
	})
	stall := ipc.Handle(func(ctx context.Context, _ workerapi.PolicyRequest) (ipc.None, error) {
		<-ctx.Done()
		return ipc.None{}, ctx.Err()
	})
	switch string(how) {
	case "writes nothing":
		w.Methods[workerapi.MethodAppend] = ipc.Handle(func(context.Context, workerapi.AppendRequest) (ipc.None, error) { return ipc.None{}, nil })
	case "refuses to prepare":
		w.Methods[workerapi.MethodPrepare] = refuse
	case "never prepares":
		w.Methods[workerapi.MethodPrepare] = stall
	case "dies preparing":
		w.Methods[workerapi.MethodPrepare] = ipc.Handle(func(context.Context, workerapi.PolicyRequest) (ipc.None, error) { os.Exit(9); return ipc.None{}, nil })
	case "refuses to prepare, and spins":
		w.Methods[workerapi.MethodPrepare] = refuse
		runtime.GOMAXPROCS(60)
		for range 60 {
			go func() {
				for {
				}
			}()
		}
	case "refuses to use":
		w.Methods[workerapi.MethodUse] = refuse
	case "never uses":
		w.Methods[workerapi.MethodUse] = stall
	}
	return w.Serve()
}
