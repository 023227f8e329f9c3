package layer

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"sallyport/memory"
)

// TurnsFile has the conversations, a turn a line.
const TurnsFile = "conversations.jsonl"

const maxTurn = 1 << 20

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
	return l.Folder.AppendLine(TurnsFile, line)
}
