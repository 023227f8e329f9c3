package sniff

import (
	"bytes"
	"encoding/binary"

	"sallyport/policy"
)

// classifyLogin names a protocol that the gateway logs in by, other for none. It is not sure
// while b could become something else.
func classifyLogin(b []byte) (policy.Protocol, bool) {
	for _, of := range []struct {
		protocol policy.Protocol
		begins   func([]byte) (is, sure bool)
	}{{policy.ProtocolSSH, beginsSSH}, {policy.ProtocolPostgres, beginsPostgres}, {policy.ProtocolRedis, beginsRedis}} {
		if is, sure := of.begins(b); is {
			return of.protocol, sure
		}
	}
	return policy.ProtocolOther, true
}

// beginsSSH: the version of the protocol (RFC 4253, section 4.2). Its first letters may
// still be a method of HTTP.
func beginsSSH(b []byte) (is, sure bool) { return begins(b, "SSH-2.0-") }

// begins tells whether b begins with a text, or could.
func begins(b []byte, with string) (is, sure bool) {
	n := min(len(b), len(with))
	return string(b[:n]) == with[:n], n == len(with)
}

// beginsPostgres: the length and the code of a StartupMessage, SSLRequest, GSSENCRequest or
// CancelRequest (PostgreSQL, section 55.7).
func beginsPostgres(b []byte) (is, sure bool) {
	const head, longest = 8, 10_000 // bytes; of a StartupMessage, as PostgreSQL has it
	if b[0] != 0 {
		return false, true
	}
	if len(b) < head {
		// Not further than the length: the codes begin with 0 and 3, or 4 and 0xD2.
		for i, c := range b {
			if i < 2 && c != 0 || i == 4 && c != 0 && c != 4 || i == 5 && c != 3 && c != 0xD2 {
				return false, true
			}
		}
		return true, false
	}
	length, code := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
	const sslRequest, gssRequest, cancelRequest = 80877103, 80877104, 80877102
	switch {
	case code == sslRequest, code == gssRequest:
		return length == head, true
	case code == cancelRequest:
		return length >= 16 && length <= 4+4+4+256, true
	}
	return code>>16 == 3 && length > head && length <= longest, true
}

// beginsRedis: an array of bulk strings, as clients send each command, or one of the
// commands that a connection begins with, inline (RESP).
func beginsRedis(b []byte) (is, sure bool) {
	if b[0] == '*' {
		const digits = 7 // of the number of elements: 1,048,576 at most
		rest := b[1:]
		n := 0
		for n < len(rest) && rest[n] >= '0' && rest[n] <= '9' {
			n++
		}
		rest = rest[n:]
		if n > digits || n == 0 && len(rest) > 0 {
			return false, true
		}
		is, sure := begins(rest, "\r\n$")
		return is, sure && n > 0
	}
	for _, command := range []string{"PING", "AUTH", "HELLO"} {
		rest, is := bytes.CutPrefix(b, []byte(command))
		switch {
		case !is || len(rest) == 0:
		case rest[0] == '\r', rest[0] == '\n', rest[0] == ' ' && len(rest) > 1 && !target(rest[1]):
			return true, true
		}
	}
	return false, true
}
