package audit

import "cmp"

// Findings, as the state of their events has them.
const (
	FindingGiven    = "secret-given"     // a secret was about to be in a sandbox
	FindingInAnswer = "secret-in-answer" // an answer held a secret, which was overwritten
	FindingGuessed  = "secret-guessed"   // an answer held a secret that its host had never been sent
	FindingInMemory = "secret-in-memory" // a file of a sandbox's memory held a secret, and was taken out
	FindingImpostor = "impostor"         // a server had another key than those that a rule pins
	FindingBypass   = "bypass"           // packets that tried to get past the gateway, as no ordinary program sends them

	FindingExfiltration = "placeholder-sent" // a sandbox tried to send a credential's placeholder where it is not replaced

	FindingUnrecorded  = "unrecorded-flow"   // a connection that passed, and that the gateway has not recorded
	FindingUnaccounted = "unaccounted-bytes" // a connection that sent far more than its records say
)

// titles say what a finding is, for people.
var titles = map[string]string{
	FindingGiven:    "A secret was about to get into a sandbox",
	FindingInAnswer: "An answer held a credential",
	FindingGuessed:  "A host answered with a credential that it was never sent",
	FindingInMemory: "The memory of a sandbox held a secret",
	FindingImpostor: "A server had another key than those that its rule pins",
	FindingBypass:   "A sandbox tried to get past the gateway",

	FindingExfiltration: "A sandbox tried to send a credential's placeholder elsewhere",

	FindingUnrecorded:  "A connection of a sandbox is not in the audit log",
	FindingUnaccounted: "A connection of a sandbox sent far more than the audit log says",
}

// Finding returns an event that says what another shows, of OCSF's class Detection
// Finding: what a security team wants to look at. Both say what was done about it.
func Finding(what string, of *Event) *Event {
	e := New(KindFinding, ClassFinding, findingCreate)
	e.Metadata.CorrelationUID = cmp.Or(of.Metadata.CorrelationUID, of.ID())
	e.SeverityID, e.StatusID, e.IsAlert = SeverityMedium, Status(statusNew), true
	e.Action, e.Disposition, e.Rule, e.Policy = of.Action, of.Disposition, of.Rule, of.Policy
	e.Message, e.Count = titles[what], of.Count
	e.FindingInfo = &FindingInfo{
		Analytic: Analytic{Name: what, TypeID: analyticRule},
		Related:  []Related{{TypeUID: of.TypeUID, UID: of.ID()}},
		Title:    titles[what], UID: e.ID(),
	}
	for _, p := range []*Endpoint{of.Source, of.Destination} {
		if p != nil && p.Container != nil {
			e.Metadata.with(container)
		}
	}
	if of.Source != nil || of.Destination != nil || of.Actor != nil {
		e.Evidences = []Evidence{{
			Actor: of.Actor, Connection: of.Connection, Destination: of.Destination, HTTPRequest: of.HTTPRequest, Source: of.Source, TLS: of.TLS,
		}}
	}
	by, x := &of.Unmapped.Sallyport, &e.Unmapped.Sallyport
	x.State, x.Sandbox, x.SandboxID, x.Session, x.Tags, x.Owner = what, by.Sandbox, by.SandboxID, by.Session, by.Tags, by.Owner
	x.Credentials, x.Found, x.Phase, x.Reason = by.Credentials, by.Found, by.Phase, by.Reason
	if x.SandboxID != "" {
		e.Resources = []Resource{{Name: x.Sandbox, Type: "sandbox", UID: x.SandboxID}}
	}
	return e
}

const (
	findingCreate = 1 // activity_id
	statusNew     = 1 // status_id of findings
	analyticRule  = 1 // finding_info.analytic.type_id
)

// FindingInfo is what a Detection Finding has found.
type FindingInfo struct {
	Analytic Analytic  `json:"analytic"`
	Related  []Related `json:"related_events,omitempty"`
	Title    string    `json:"title"`
	UID      string    `json:"uid"`
}

// Analytic is what has found it.
type Analytic struct {
	Name   string `json:"name"`
	TypeID int    `json:"type_id"`
}

// Related is the event that shows it.
type Related struct {
	TypeUID int    `json:"type_uid,omitempty"`
	UID     string `json:"uid"`
}

// Evidence is of the event that shows it.
type Evidence struct {
	Actor       *Actor       `json:"actor,omitempty"`
	Connection  *Connection  `json:"connection_info,omitempty"`
	Destination *Endpoint    `json:"dst_endpoint,omitempty"`
	HTTPRequest *HTTPRequest `json:"http_request,omitempty"`
	Source      *Endpoint    `json:"src_endpoint,omitempty"`
	TLS         *TLS         `json:"tls,omitempty"`
}
