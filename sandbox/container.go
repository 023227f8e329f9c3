package sandbox

import (
	"net/netip"
	"time"
)

// Container is what a runtime is asked to make.
type Container struct {
	ID      string // the sandbox's ID; the container is named after it
	Name    string // the host name inside
	Spec    Spec
	Image   string       // ID of the image to make it of; "": the one that Spec names
	Address netip.Prefix // the sandbox's address with the subnet's length
	Gateway netip.Addr
	MAC     string
	Env     []string
	Mounts  []Mount
	// Trust is the PEM certificate that the sandbox must trust besides its
	// image's own roots.
	Trust []byte
	// Layer is the folder of the host, empty at first, that the container's writes go
	// to; "": the engine chooses one.
	Layer string
	// Like is the ID of a sandbox with the same image whose files, its trusted
	// certificates included, are about to be copied into this one; "": none.
	Like string
}

// Mount binds a folder or file of the host into a sandbox.
type Mount struct {
	Source, Target string
	ReadOnly       bool
}

// Status is what a runtime sees of a container.
type Status struct {
	Running bool
	Paused  bool   // and Running
	PID     int    // of the container's first process as the host sees it
	Link    int    // interface index of the host's end of its veth, 0 when not running
	Exit    int    // of the last run
	Error   string // of the last start
	// Started is when the container was last started, by the engine's clock.
	Started time.Time
}

// Endpoint is a sandbox's place on the network: what its packets must show.
type Endpoint struct {
	Link       int // interface index of the host's end of the veth
	Sandbox    string
	ID         string
	Generation uint32 // unique and never reused: each start and each wake has its own
	Address    netip.Addr
	MAC        string
	Offline    bool // only the host's own connections to its agent and its ProbePorts pass
	// ProbePorts are TCP ports that processes of the host's root may connect to.
	ProbePorts ProbePorts
}

// ProbePorts are ports of a sandbox; 0 is none.
type ProbePorts [16]uint16

// Flow is a TCP connection of a sandbox's, by its two ends.
type Flow struct {
	Sandbox netip.AddrPort `json:"sandbox"`
	Peer    netip.AddrPort `json:"peer"` // the other end, whichever dialled
}

// Usage is what a sandbox has used since it was started.
type Usage struct {
	CPU  time.Duration
	Sent uint64 // bytes, with headers
}

// checkpointMargin is what a checkpoint takes besides an eighth more than the resident
// memory, in bytes.
const checkpointMargin = 32 << 20

// CheckpointSize is the most that a checkpoint of a sandbox with so many bytes resident
// takes, in bytes: with its kernel's own state, and its growth in the meantime.
func CheckpointSize(resident int64) int64 { return resident + resident/8 + checkpointMargin }
