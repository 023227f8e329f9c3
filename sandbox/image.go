package sandbox

import "time"

// Image is an image that the engine has.
type Image struct {
	// ID is the digest of its configuration, which names all its layers: sha256:HEX.
	ID string `json:"id"`
	// Names are all names that stand for it now, as debian:bookworm.
	Names []string `json:"names"`
	// Digests are its names at registries, NAME@sha256:HEX. An image from a file has none.
	Digests []string  `json:"digests,omitempty"`
	Size    int64     `json:"size"` // bytes, shared layers included
	Created time.Time `json:"created,omitzero"`
	// Default marks the image of sandboxes whose spec names none.
	Default bool `json:"default,omitempty"`
	// Sandboxes are the full names of the sandboxes that are made of it.
	Sandboxes []string `json:"sandboxes,omitempty"`
}

// ImageStep is the progress of one part of an image that is being fetched.
type ImageStep struct {
	Layer  string `json:"layer,omitempty"` // the first digits of its digest
	Status string `json:"status"`
	Done   int64  `json:"done,omitempty"` // bytes
	Total  int64  `json:"total,omitempty"`
}

// Login is a login at a registry: a username and a password, or a token. Only the code
// that sends it to the registry calls Reveal.
type Login interface {
	Reveal() (username, password, token string)
	// Hide returns a text that may have come from the registry, without what Reveal returns.
	Hide(text string) string
}
