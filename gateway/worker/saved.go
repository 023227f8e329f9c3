package worker

import (
	"context"
	"encoding/json"
	"sync"

	"sallyport/gateway/credential/sent"
	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
)

// keep has the supervisor keep what answers are searched for. It is a sent.Keep.
type keep struct {
	peer *ipc.Peer
	mu   sync.Mutex // the parts of one after the other's
}

// Load implements sent.Keep.
func (k *keep) Load(ctx context.Context, id string) (saved sent.Saved, err error) {
	ctx, cancel := context.WithTimeout(ctx, workerapi.AnswerWithin)
	defer cancel()
	var got workerapi.SavedReply
	if err := k.peer.Call(ctx, workerapi.MethodSaved, workerapi.SavedRequest{ID: id}, &got); err != nil || len(got.Saved) == 0 {
		return saved, err
	}
	defer clear(got.Saved)
	return saved, json.Unmarshal(got.Saved, &saved)
}

// Save implements sent.Keep. A client that goes away does not break it off.
func (k *keep) Save(ctx context.Context, id string, more sent.Saved) error {
	text, err := json.Marshal(more)
	if err != nil {
		return err
	}
	defer clear(text)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), workerapi.AnswerWithin)
	defer cancel()
	k.mu.Lock()
	defer k.mu.Unlock()
	for first := true; ; first = false {
		n := min(len(text), workerapi.SavedChunk)
		part := workerapi.SaveRequest{ID: id, Part: text[:n], First: first, Last: n == len(text)}
		if err := k.peer.Call(ctx, workerapi.MethodSave, part, &ipc.None{}); err != nil || part.Last {
			return err
		}
		text = text[n:]
	}
}
