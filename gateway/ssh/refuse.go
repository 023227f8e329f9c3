package ssh

import (
	"encoding/binary"
	"io"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"sallyport/gateway/wire"
)

const (
	// notAllowed is SSH_DISCONNECT_HOST_NOT_ALLOWED_TO_CONNECT (RFC 4253, section 11.1).
	notAllowed = 1
	// maxReason bounds what a client is told, in bytes.
	maxReason = 1 << 10
	// maxUnread bounds what a client says before it reads that it is refused, in bytes.
	maxUnread = 64 << 10
	// lingers is how long a client has to read it.
	lingers = time.Second
)

// Tell implements wire.Refuser. It is before any key exchange, so that the client sees the
// reason whatever host key it expects: OpenSSH writes "Received disconnect".
func (h *Handler) Tell(c wire.Conn, reason string) {
	_ = c.SetDeadline(time.Now().Add(c.HandshakeTimeout()))
	said := "sallyport: " + strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "")
	payload := ssh.Marshal(struct {
		Reason    uint32 `sshtype:"1"`
		Text, Tag string
	}{notAllowed, said, ""})
	// A packet without encryption is a multiple of 8 bytes, and has 4 of padding at least (RFC
	// 4253, section 6).
	padding := 8 - (5+len(payload))%8
	if padding < 4 {
		padding += 8
	}
	packet := append([]byte(version+"\r\n"), binary.BigEndian.AppendUint32(nil, uint32(1+len(payload)+padding))...)
	packet = append(append(append(packet, byte(padding)), payload...), make([]byte, padding)...)
	if _, err := c.Write(packet); err != nil {
		return
	}
	// Unread bytes, when the connection is closed, would have the client lose the reason.
	_ = c.SetReadDeadline(time.Now().Add(lingers))
	_, _ = io.Copy(io.Discard, io.LimitReader(c, maxUnread))
}
