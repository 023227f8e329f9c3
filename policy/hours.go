package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	_ "time/tzdata" // the gateway's process does not see the host's
)

var weekdays = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"} // as time.Weekday counts

// Opening is Hours ready to be compared with.
type Opening struct {
	days     [7]bool
	from, to int // minutes of the day
	zone     *time.Location
	next     atomic.Pointer[wait] // that was looked for last
}

// wait is a time without hours, both ends in nanoseconds since the epoch.
type wait struct{ since, until int64 }

// NewOpening is for hours that have been checked; nil for nil.
func NewOpening(h *Hours) *Opening {
	if h == nil {
		return nil
	}
	o, _ := ReadHours(*h)
	return o
}

// ReadHours checks hours. Its errors are "key: what is wrong; what to write".
func ReadHours(h Hours) (*Opening, error) {
	o := &Opening{to: 24 * 60, zone: time.UTC}
	var err error
	if h.Zone != "" {
		if o.zone, err = time.LoadLocation(h.Zone); err != nil || strings.EqualFold(h.Zone, "local") {
			return nil, fmt.Errorf("zone: %.64q is not a time zone; write one as Europe/Berlin", h.Zone)
		}
	}
	for i, day := range h.Days {
		n := slices.Index(weekdays, day)
		if n < 0 {
			return nil, fmt.Errorf("days[%d]: %.64q is not a day; write mon, tue, wed, thu, fri, sat or sun", i, day)
		}
		o.days[n] = true
	}
	if h.Days == nil {
		o.days = [7]bool{true, true, true, true, true, true, true}
	} else if len(h.Days) == 0 {
		return nil, errors.New("days: is empty, so that nothing is ever allowed; remove it for all days, or list some")
	}
	for _, at := range []struct {
		key, text string
		to        *int
	}{{"from", h.From, &o.from}, {"to", h.To, &o.to}} {
		if at.text == "" {
			continue
		}
		t, err := time.Parse("15:04", at.text)
		switch {
		case at.text == "24:00" && at.key == "to":
			*at.to = 24 * 60
		case err != nil || len(at.text) != len("15:04"):
			return nil, fmt.Errorf("%s: %.64q is not a time of the day; write one as 08:00", at.key, at.text)
		default:
			*at.to = t.Hour()*60 + t.Minute()
		}
	}
	if o.from == o.to {
		return nil, errors.New("to: is the same time as from; write 00:00 and 24:00 for all day")
	}
	return o, nil
}

// open tells whether t is within the hours.
func (o *Opening) open(t time.Time) bool {
	t = t.In(o.zone)
	minute, day := t.Hour()*60+t.Minute(), int(t.Weekday())
	if o.from < o.to {
		return o.days[day] && o.from <= minute && minute < o.to
	}
	return o.days[day] && minute >= o.from || o.days[(day+6)%7] && minute < o.to
}

// opens is how long it is from t until they begin, 0 where t is within them. The
// clock of the zone may be set meanwhile, so that the moment is looked for.
func (o *Opening) opens(t time.Time) time.Duration {
	if o.open(t) {
		return 0
	}
	now := t.UnixNano()
	if w := o.next.Load(); w != nil && w.since <= now && now < w.until {
		return time.Duration(w.until - now)
	}
	at := t.Truncate(time.Minute).Add(time.Minute)
	for ; at.Sub(t) < 9*24*time.Hour && !o.open(at); at = at.Add(time.Minute) {
	}
	o.next.Store(&wait{now, at.UnixNano()})
	return at.Sub(t)
}
