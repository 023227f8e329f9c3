package audit

// States (unmapped.sallyport.state) of events that say that records are missing.
const (
	StateGap     = "audit-gap"     // at a sink
	StateDropped = "audit-dropped" // from the log, which could not be written, or whose queue was full
)

// Gap says that a sink lacks Count of the records from First to Last, and why.
type Gap struct {
	Count  int    `json:"count"`
	First  uint64 `json:"first"`
	Last   uint64 `json:"last"`
	Reason string `json:"reason"`
	Sink   string `json:"sink"`
}
