package access

import (
	"crypto/subtle"
	"slices"
)

// RouterClient may send requests to ports of the sandboxes of some namespaces of Kubernetes,
// on any node.
type RouterClient struct {
	Name       string
	Namespaces []string
	Digests    []string // SHA-256 of its tokens in hex: while one is replaced, of both
}

// NewRouterClient returns the client that has these tokens.
func NewRouterClient(name string, namespaces, tokens []string) RouterClient {
	c := RouterClient{Name: name, Namespaces: namespaces}
	for _, t := range tokens {
		c.Digests = append(c.Digests, digestOf(t))
	}
	return c
}

// RouterClientOf returns the client whose token it is, or the zero client. It takes as long
// for each.
func RouterClientOf(list []RouterClient, token string) (of RouterClient) {
	digest := []byte(digestOf(token))
	for _, c := range list {
		for _, d := range c.Digests {
			if subtle.ConstantTimeCompare(digest, []byte(d)) == 1 {
				of = c
			}
		}
	}
	return of
}

// MayAsk reports whether the client may ask sandboxes of a namespace.
func (c RouterClient) MayAsk(namespace string) bool { return slices.Contains(c.Namespaces, namespace) }
