package live

import (
	"testing"

	"sallyport/policy"
)

// A request under way is ended by a limit of bytes that is new or tighter, and by no other.
func TestTighter(t *testing.T) {
	decision := func(limits ...policy.Limit) (d policy.Decision) {
		for i := range limits {
			d.Limits = append(d.Limits, policy.Applied{Limit: &limits[i], Subject: "x"})
		}
		return d
	}
	a, wide := policy.Limit{Name: "a", Bytes: 100}, policy.Limit{Name: "a", Bytes: 200}
	for _, tt := range []struct {
		name      string
		then, now policy.Decision
		want      bool
	}{
		{"the same", decision(a), decision(a), false},
		{"a new one", decision(), decision(a), true},
		{"more", decision(a), decision(wide), false},
		{"less", decision(wide), decision(a), true},
		{"none", decision(a), decision(), false},
		{"a new one of requests", decision(), decision(policy.Limit{Name: "r", Requests: 1}), false},
	} {
		if err := Compare(tt.now, tt.then); (err != nil) != tt.want {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
