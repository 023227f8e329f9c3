package workerapi

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"sallyport/policy/approval"
)

var errQuestion = errors.New("not what can be asked about")

// Bounds of a question, in bytes and names; a whole call is bounded too.
const (
	maxText  = 1 << 10
	maxNames = 256
	// maxLength is the largest number that the audit log has as it is.
	maxLength = 1<<53 - 1
)

// CheckQuestion checks a question that a worker asks an operator: lengths, encodings
// and digests.
func CheckQuestion(q approval.Question) error {
	s := q.Subject
	for _, f := range []struct {
		text string
		max  int
	}{
		{s.Protocol, 16}, {s.Host, 253}, {s.Method, 256}, {s.Path, 8 << 10}, {s.Target, 8 << 10}, {s.Query, 64}, {s.Rule, maxText}, {s.RuleType, 32},
		{s.Policy, 128}, {s.Body, 64}, {q.ID, 64}, {q.Reason, 4 * maxText},
	} {
		if len(f.text) > f.max || !utf8.ValidString(f.text) {
			return fmt.Errorf("%w: a text of %d bytes", errQuestion, len(f.text))
		}
	}
	for _, digest := range []string{s.Query, s.Body} {
		if digest != "" && (len(digest) != 64 || strings.Trim(digest, "0123456789abcdef") != "") {
			return fmt.Errorf("%w: a digest that is none", errQuestion)
		}
	}
	if len(s.QueryKeys) > maxNames || len(s.Credentials) > maxNames || s.Host == "" || s.Port == 0 || (s.Method == "") != (s.Path == "") || s.Length < -1 || s.Length > maxLength {
		return errQuestion
	}
	if q.Timeout < 0 || q.Timeout > 2*time.Hour {
		return errQuestion
	}
	return nil
}
