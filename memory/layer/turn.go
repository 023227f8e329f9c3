package layer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"slices"
	"time"

	"sallyport/memory"
)

const (
	turnsFile = "conversations.jsonl"
	maxTurn   = 1 << 20
	maxTurns  = 16 << 20 // bytes at the end of the file that are read
)

// Turn is one line of the conversations.
type Turn struct {
	Time    time.Time `json:"time"`
	Session string    `json:"session,omitempty"`
	Role    string    `json:"role"` // user, assistant or tool
	Content string    `json:"content"`
}

// AppendTurn adds a turn to the conversations. Its content has at most 1 MiB.
func (l *Layers) AppendTurn(ctx context.Context, role, content string) error {
	if !slices.Contains([]string{"user", "assistant", "tool"}, role) {
		return invalid("the role %q: a role is user, assistant or tool", memory.Clip(role, 64))
	}
	if err := validText("the content of a turn", content, maxTurn); err != nil {
		return err
	}
	if err := l.validSession(); err != nil {
		return err
	}
	line, err := json.Marshal(Turn{l.now().Truncate(time.Millisecond), l.Session, role, content})
	if err != nil {
		return err
	}
	return l.Folder.AppendLine(turnsFile, line)
}

// Turns returns the last turns of the conversations, at most n of them, the oldest first,
// out of the file's last 16 MiB. session "" is all sessions. Lines that are no turns are
// passed over.
func (l *Layers) Turns(ctx context.Context, session string, n int) ([]Turn, error) {
	data, size, err := l.Folder.ReadPart(turnsFile, -maxTurns, maxTurns)
	if errors.Is(err, fs.ErrNotExist) {
		return []Turn{}, nil
	}
	if err != nil {
		return nil, err
	}
	if size > maxTurns {
		data = data[bytes.IndexByte(data, '\n')+1:]
	}
	turns := []Turn{}
	for len(data) > 0 && len(turns) < n {
		data = bytes.TrimSuffix(data, []byte("\n"))
		begin := bytes.LastIndexByte(data, '\n') + 1
		var t Turn
		if json.Unmarshal(data[begin:], &t) == nil && t.Role != "" && (session == "" || t.Session == session) {
			turns = append(turns, t)
		}
		data = data[:begin]
	}
	slices.Reverse(turns)
	return turns, nil
}
