package audit

// An Exchange has room for a decision, its completion and what the two point
// to: as a field of whatever its user keeps of a request it costs no memory of
// its own, apart from it one object in place of sixteen.
//
// The events point into it, so that it is not copied, and what one of them
// points to is what both say. Once Append and Enqueue have returned it can be
// used again.
type Exchange struct {
	Decision, Completion Event

	// For the fields of the same type of the events, which point to nothing
	// until they are set.
	Destination Endpoint
	Request     HTTPRequest
	URL         URL
	TLS         TLS
	Rule        Rule
	Policy      Policy
	Response    HTTPResponse
	Traffic     Traffic
}

// Decide makes Decision an event as New does.
func (x *Exchange) Decide(class Class, activity int) *Event {
	x.Decision = Event{}
	x.Decision.begin(KindDecision, class, activity)
	return &x.Decision
}

// Complete makes Completion an event that follows Decision to its successful
// end. It repeats who asked for what, and what was decided on which grounds.
func (x *Exchange) Complete(activity int) *Event {
	d, c := &x.Decision, &x.Completion
	*c = Event{}
	c.begin(KindCompletion, d.ClassUID, activity)
	c.Metadata.CorrelationUID = d.ID()
	c.StartTime, c.Duration = d.Time, c.Time-d.Time
	c.StatusID, c.Action, c.Disposition = StatusSuccess, d.Action, d.Disposition
	c.Source, c.Destination, c.TLS = d.Source, d.Destination, d.TLS
	c.HTTPRequest, c.Rule, c.Policy = d.HTTPRequest, d.Rule, d.Policy
	of, by := &c.Unmapped.Sallyport, &d.Unmapped.Sallyport
	of.Sandbox, of.SandboxID, of.Session, of.Tags = by.Sandbox, by.SandboxID, by.Session, by.Tags
	of.Phase, of.Decision, of.Limits = by.Phase, by.Decision, by.Limits
	return c
}
