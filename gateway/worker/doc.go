// Package worker is the gateway as a process of its own, without privileges: it
// parses what sandboxes and upstreams send, decides, injects credentials, scrubs
// answers and writes the audit log's last segment.
//
// The process runs in a jail (internal/jail). Package supervisor, in the daemon,
// starts it, answers its calls (package workerapi) and starts it again when it
// dies. The worker is given listeners, the policy, and the tables of sandboxes,
// clients and published ports. It asks the supervisor
//
//   - to lease a credential for one destination, for 256 uses within a second at
//     most. Unused material is kept for 15 seconds at most, so that nothing
//     derived from a secret is made twice;
//   - for an upstream proxy's login, each time that it dials the proxy;
//   - to sign a certificate: no authority's key is in this process;
//   - for the next segment of the audit log;
//   - for the synthetic address of a name, which is durable;
//   - for this host's addresses, before each connection upstream;
//   - to identify and to wake a sandbox with a published port, and for a connection
//     to that port;
//   - for an operator's approval of a request. The reply comes at once and the
//     verdict by another call, so that no other call waits for a person.
//
// One request of a sandbox: the worker accepts the connection from a shared
// listener, finds the sandbox by its address and the name by the destination's,
// decides by the policy, gets a leaf signed (once a day), reads the request,
// decides again, appends the decision to the log and waits for the disk, leases and
// injects the credential, resolves, asks for this host's addresses, dials, sends, scrubs
// the answer and records the completion.
//
// A fence of imports (internal/test/deptest) keeps the stores of secrets, the
// authorities' keys and the container engine out of this package. Package supervisor tells what a
// worker that has been taken over can do.
package worker
