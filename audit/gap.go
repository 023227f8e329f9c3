package audit

// Gap says that a sink lacks Count of the records from First to Last, and why.
type Gap struct {
	Count  int    `json:"count"`
	First  uint64 `json:"first"`
	Last   uint64 `json:"last"`
	Reason string `json:"reason"`
	Sink   string `json:"sink"`
}
