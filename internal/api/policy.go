package api

import (
	"time"

	"sallyport/internal/bundle"
)

// Policy says how what is in force came to be, and what did not.
type Policy struct {
	Loaded time.Time `json:"loaded"`
	By     string    `json:"by"` // start, signal, api, files or bundle
	// Refused is what is on disk, or at the bundle's server, in place of what is in
	// force; nil where that is the same.
	Refused *Refused `json:"refused,omitempty"`
	// Selected are sandboxes that the last load's rules began to select by a name that
	// they had before.
	Selected []string       `json:"selected,omitempty"`
	Bundle   *bundle.Status `json:"bundle,omitempty"`
}

// Refused is a policy that was not taken.
type Refused struct {
	Since  time.Time `json:"since"` // of the first of several in a row
	By     string    `json:"by"`
	Reason string    `json:"reason"`
}
