package client

// Protocol is the Upgrade token of a command's stream (RFC 9110, section 7.8).
// After 101 both sides send frames of [wire], as they go to the agent; the last is
// of kind wire.Exit and holds the JSON of Exit.
const Protocol = "sallyport-exec/1"

// Exit is how a command ended: with a code, or with an error of ours.
type Exit struct {
	Code  int      `json:"code"`
	Error *Problem `json:"error,omitempty"`
}
