package audit

// Exchange has room for a decision, its completion and everything that the two point to.
// As a field of a request's state it costs no allocation; alone it is one object in place
// of sixteen.
//
// The events point into it, so it must not be copied, and both events share what they
// point to. It can be reused once Append and Enqueue have returned.
type Exchange struct {
	Decision, Completion Event

	// For the fields of the same type of the events, which point to nothing
	// until they are set.
	Destination Endpoint
	Reached     Endpoint // the destination with the address that was found
	Container   Container
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

// Complete makes Completion an event that follows Decision to a successful end. It repeats
// the request, the sandbox and the decision with its grounds.
func (x *Exchange) Complete(activity int) *Event {
	d, c := &x.Decision, &x.Completion
	*c = Event{}
	c.begin(KindCompletion, d.ClassUID, activity)
	c.Metadata.Profiles = d.Metadata.Profiles
	if activity == d.ActivityID {
		c.ActivityName = d.ActivityName
	}
	c.Metadata.CorrelationUID = d.ID()
	c.StartTime, c.Duration = d.Time, c.Time-d.Time
	c.StatusID, c.Action, c.Disposition = StatusSuccess, d.Action, d.Disposition
	c.Actor, c.Source, c.Destination, c.TLS = d.Actor, d.Source, d.Destination, d.TLS
	c.HTTPRequest, c.Rule, c.Policy, c.Connection, c.Proxy = d.HTTPRequest, d.Rule, d.Policy, d.Connection, d.Proxy
	of, by := &c.Unmapped.Sallyport, &d.Unmapped.Sallyport
	of.Sandbox, of.SandboxID, of.Session, of.Tags = by.Sandbox, by.SandboxID, by.Session, by.Tags
	of.Phase, of.Decision, of.Limits, of.Method, of.Owner = by.Phase, by.Decision, by.Limits, by.Method, by.Owner
	return c
}
