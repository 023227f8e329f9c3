// Package bypass tries to get around the gateway, from inside gVisor sandboxes,
// and holds what came of it against what must have.
//
// The tests prove, for each attempt, by one daemon as it is shipped, with sandboxes,
// datapath, resolver, policy, credentials and log:
//
//   - what the sandbox is told: the answers on its connection in their order, or
//     how that ended;
//   - what the upstream saw: every request that reached it, with host, target, body
//     and whose credential. Where an attempt says nothing of that, nothing came: no
//     request, no connection, no look-up of a name;
//   - what the log says: each decision of it, once, with its rule;
//   - that no answer had the credential in it, in the clear, in base64 or in
//     hexadecimal;
//   - that the test could have failed: the same thing in its legal form passes,
//     right after, and the upstream sees that.
//
// A case reads from the top: its name, what is sent, what comes back, what the
// log says, what the upstream saw, and the legal form. Strings are what is on the
// wire. Destinations are in rig_test.go: the sandbox may GET and POST below
// /v1/ at api.example.test, with a credential that it does not have, may do anything
// at other.example.test, and nothing at denied.example.test and
// unlisted.example.test, which the same upstream would answer too.
//
// The files: authority (which host a request is for), address (where a name
// leads), framing (where a request ends), http2, header, path, reading (what
// servers take for different paths), hello (TLS), quoted
// (answers that quote what another request was sent with), sharing (what
// connections and sandboxes have in common), lookup (DNS), other (tunnels, other
// protocols, QUIC), elsewhere (the explicit proxy, from a gVisor sandbox that is
// not Sallyport's), slow. Packets of no connection are tried in internal/e2e,
// by packets_test.go and raw_test.go, and in sandbox/datapath. docs/reference/ways-around.md
// lists it all.
//
// This package itself is only what the tests and the program inside of the
// sandbox (probe) say to each other.
package bypass
