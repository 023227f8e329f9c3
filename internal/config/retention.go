package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"sallyport/policy"
)

// Retention says which records of the audit log are kept. Whole segments are deleted, the
// oldest first: never under a legal hold, and not before every sink has them.
type Retention struct {
	// Keep is the age beyond which records are deleted, as 90d or 720h, from 1h. Default:
	// they are kept.
	// Example: 90d
	Keep Age `yaml:"keep"`
	// Bytes is what segments may take of the disk, at least SegmentSize: beyond it the
	// oldest are deleted. Default: no bound.
	// Example: 100GiB
	Bytes policy.Size `yaml:"bytes"`
	// Compress has segments compressed with zstd once a checkpoint covers them; those that
	// are stay so. Default: true.
	// Example: false
	Compress *bool `yaml:"compress"`
}

// Age is a time that may be written in days, as 90d.
type Age time.Duration

const day = 24 * time.Hour

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *Age) UnmarshalText(text []byte) error {
	if days, ok := strings.CutSuffix(string(text), "d"); ok {
		n, err := strconv.ParseUint(days, 10, 31)
		if err != nil || n > uint64(math.MaxInt64/day) {
			return fmt.Errorf("%.64q is not a number of days", text)
		}
		*a = Age(time.Duration(n) * day)
		return nil
	}
	v, err := time.ParseDuration(string(text))
	*a = Age(v)
	return err
}

func (v *validator) retention(a Audit) {
	if k := time.Duration(a.Retention.Keep); k != 0 && k < time.Hour {
		v.fail("audit.retention.keep", fmt.Sprintf("%v is less than 1h", k), "write a time as 90d, or leave it out to keep all records")
	}
	if b := int64(a.Retention.Bytes); b != 0 && b < a.SegmentSize {
		v.fail("audit.retention.bytes", fmt.Sprintf("%v is less than one segment, %v", a.Retention.Bytes, policy.Size(a.SegmentSize)), "write a size as 100GiB, or leave it out for no bound")
	}
}
