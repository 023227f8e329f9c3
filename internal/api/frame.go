package api

// protocol is the Upgrade token of a command's stream (RFC 9110, section 7.8).
// After 101 both sides send frames of package wire, as they go to the agent;
// Exit holds the JSON of exit.
const protocol = "sallyport-exec/1"

// exit is how a command ended: with a code, or with an error of ours.
type exit struct {
	Code  int      `json:"code"`
	Error *Problem `json:"error,omitempty"`
}
