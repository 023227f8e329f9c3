package wire

// PortProtocol is what GET /ports/PORT?host=HOST is upgraded to (RFC 9110, section
// 7.8): after the answer's head the connection is one to that TCP port of the
// sandbox, and carries its bytes, the end of either direction (FIN) and its breaking
// off (RST). HOST is one of the names below.
const PortProtocol = "sallyport-port/1"

// Hosts whose ports the agent connects to, which are all its own.
const (
	HostOwn       = ""          // the address that the agent is reached at
	HostLocal     = "localhost" // HostLoopback, HostLoopback6 and HostOwn, in that order
	HostLoopback  = "127.0.0.1"
	HostLoopback6 = "::1"
)

// SFTPProtocol is what GET /sftp?user=USER&folder=FOLDER is upgraded to: SFTP
// (draft-ietf-secsh-filexfer-02, version 3) with the rights of that user, as clients of
// SSH's subsystem speak it. Relative names begin at that folder.
const SFTPProtocol = "sallyport-sftp/1"
