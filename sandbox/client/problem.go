package client

// ProblemType begins the type of every problem; what follows it is stable, and
// listed in docs/reference/api.md.
const ProblemType = "urn:sallyport:problem:"

// Problem is an error on the wire (RFC 9457, application/problem+json).
type Problem struct {
	Type   string `json:"type"`
	Status int    `json:"status"` // of HTTP
	Title  string `json:"title"`
	Detail string `json:"detail,omitempty"`
}

func (p *Problem) Error() string { return p.Detail }
