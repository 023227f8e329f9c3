package validate

import (
	"fmt"
	"time"

	"sallyport/policy"
)

// maxObserve bounds how far ahead observe mode may end.
const maxObserve = 30 * 24 * time.Hour

// observations checks the document's list.
func (v *validator) observations() {
	for i, o := range v.doc.Observe {
		path := fmt.Sprintf("observe[%d]", i)
		if len(o.Sandboxes.Names) == 0 && len(o.Sandboxes.Tags) == 0 {
			v.fail(path+".sandboxes", "selects every sandbox there will ever be", "name some, as in {names: [demo]} or {tags: {team: support}}")
		}
		v.matches(path, nil, nil, nil, o.Sandboxes)
		if o.Until.IsZero() {
			v.fail(path, "has no end", "write until: and a time, as 2026-12-01T00:00:00Z, at most 30 days ahead")
			continue
		}
		v.until(path+".until", o.Until)
	}
}

// until checks when observe mode ends. One that has ended is no error: a
// configuration that could be used stays one.
func (v *validator) until(path string, end time.Time) {
	now := time.Now()
	switch {
	case end.IsZero():
	case end.After(now.Add(maxObserve)):
		v.fail(path, fmt.Sprintf("%s is more than 30 days ahead", end.Format(time.RFC3339)),
			"write one until "+now.Add(maxObserve).UTC().Truncate(24*time.Hour).Format(time.RFC3339))
	case !end.After(now):
		v.say(policy.ObserveOver, path, "observe mode ended at "+end.Format(time.RFC3339)+": everything is enforced", "remove it")
	}
}
