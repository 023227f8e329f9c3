// Package wire is what the agent inside a sandbox and the host say to each
// other: how a connection is proved, the frames of an attached command, and the
// JSON of the routes. Both sides import it and nothing else of each other's.
//
// A connection is TCP to [Port] of the sandbox's own address. The agent speaks
// first: [ChallengeSize] random bytes. The host answers with the Ed25519
// signature (RFC 8032) of [Proof], [ed25519.SignatureSize] bytes, and goes on
// with HTTP/1.1 (RFC 9112) at once; the agent closes what it does not believe.
// Only the host holds the private key, so that nothing a sandbox holds, a fork
// of it included, speaks for anyone.
package wire

import "net/netip"

const (
	// Port is below 1024, which some kernels keep for root. gVisor does not: what is
	// not root cannot take it over since the agent shares it at no address.
	Port = 1023
	// KeyFile is where the host's public key is mounted, read-only: 32 bytes
	// in standard base64 (RFC 4648) and a newline.
	KeyFile = "/.sallyport/host.pub"
	// ChallengeSize is in bytes.
	ChallengeSize = 32
)

// proof separates our signatures from any other use of a key.
const proof = "sallyport-agent/1\n"

// Proof is what the host signs: the challenge, and the address and port of the
// agent's end of that connection, so that no other agent accepts the signature.
func Proof(challenge []byte, agent netip.AddrPort) []byte {
	b := append([]byte(proof), challenge...)
	agent = netip.AddrPortFrom(agent.Addr().Unmap(), agent.Port())
	return append(b, agent.String()...)
}

// identity separates an agent's signatures from the host's.
const identity = "sallyport-agent-identity/1\n"

// Identity is the body of POST /identity, with a Nonce of NonceSize bytes, and its
// answer, with the rest: the agent's public key and its signature of Identified.
// The key is made when the agent starts and is in its memory alone, and so in that
// of a fork. The first of a session is the agent's, since nothing else runs before
// it is asked for; the host knows it by that for the rest of the session.
type Identity struct {
	Nonce     []byte `json:"nonce,omitempty"`
	Key       []byte `json:"key,omitempty"`
	Signature []byte `json:"signature,omitempty"`
}

// NonceSize is in bytes.
const NonceSize = 32

// Identified is what an agent signs: the host's nonce, and its own address and port.
// A thief of the agent's address cannot relay it: an agent answers nobody inside.
func Identified(nonce []byte, agent netip.AddrPort) []byte {
	b := append([]byte(identity), nonce...)
	agent = netip.AddrPortFrom(agent.Addr().Unmap(), agent.Port())
	return append(b, agent.String()...)
}

// Activity is the answer of GET /activity.
type Activity struct {
	// Attached is the number of readers and terminals that are connected.
	Attached int `json:"attached"`
}

// Failure is the body of an answer with a status of 400 or more.
type Failure struct {
	Error string `json:"error"`
	// Code is the shell's for a command that could not be started, or 0.
	Code int `json:"code,omitempty"`
}
