package ssh

import (
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"sallyport/audit"
	"sallyport/internal/connlimit"
	"sallyport/policy"
	"sallyport/sandbox"
)

// traffic counts bytes, as the sandbox sees them.
type traffic struct{ in, out atomic.Int64 }

// event is a decision about a connection or a use of one.
func (d *Server) event(activity int, what string, k Key, i sandbox.Info, remote netip.AddrPort, decision policy.Decision) *audit.Event {
	e := audit.New(audit.KindDecision, audit.ClassSSH, activity)
	e.StatusID = audit.StatusSuccess
	e.Action, e.Disposition = audit.ActionAllowed, audit.DispositionAllowed
	if decision.Action != policy.Allow {
		e = audit.New(audit.KindDecision, audit.ClassSSH, audit.NetworkRefuse)
		e.StatusID, e.SeverityID = audit.StatusSuccess, audit.SeverityLow
		e.Action, e.Disposition = audit.ActionDenied, audit.DispositionBlocked
	}
	e.Source = &audit.Endpoint{IP: remote.Addr().Unmap().String(), Port: int(remote.Port())}
	e.Connection = &audit.Connection{ProtocolName: "tcp", ProtocolNum: 6, Direction: 1}
	user := audit.User{Name: k.Name}
	if k.Key != nil {
		user.UID = ssh.FingerprintSHA256(k.Key)
	}
	if user != (audit.User{}) {
		e.Actor = &audit.Actor{User: user}
	}
	if decision.Rule != "" {
		e.Rule = &audit.Rule{Name: decision.Rule, Type: decision.RuleType}
	}
	if decision.Revision != "" {
		e.Policy = audit.Revision(decision.Revision)
	}
	x := &e.Unmapped.Sallyport
	x.Phase, x.Protocol = string(policy.PhaseSSH), what
	x.Decision, x.Reason = string(decision.Action), decision.Reason
	if i.ID != "" {
		e.Destination = &audit.Endpoint{Hostname: i.Name, Container: &audit.Container{Name: i.Name, UID: i.ID}}
		x.Sandbox, x.SandboxID, x.Session, x.Tags, x.Owner = i.Name, i.ID, i.Session, i.Tags(), i.Spec.Owner
	}
	return e
}

// refuse records a refusal, within bounds. The name that was asked for is whoever
// asked's.
func (d *Server) refuse(e *audit.Event, name string) {
	source := ""
	if e.Source != nil {
		source = connlimit.Source(&net.TCPAddr{IP: net.ParseIP(e.Source.IP)})
	}
	n := d.refusals.Count(source)
	if n == 0 {
		return
	}
	if n > 1 {
		e.Count = n
	}
	if e.Destination == nil {
		e.Message = "SSH to " + strconv.QuoteToASCII(clip(name))
	}
	if err := d.o.Recorder.Enqueue(e); err != nil {
		d.o.Logger.Error("an event was lost", "message", e.Message, "error", err)
	}
}

func clip(s string) string { return s[:min(len(s), 64)] }

// completed records what became of a decision.
func (d *Server) completed(of *audit.Event, activity int, began time.Time, sum *traffic, detail string, failed error) {
	e := audit.New(audit.KindCompletion, audit.ClassSSH, activity)
	e.Metadata.CorrelationUID = of.ID()
	e.Action, e.Disposition, e.StatusID = of.Action, of.Disposition, audit.StatusSuccess
	e.Source, e.Destination, e.Connection, e.Actor = of.Source, of.Destination, of.Connection, of.Actor
	e.Rule, e.Policy = of.Rule, of.Policy
	e.StartTime, e.Duration, e.Detail = of.Time, time.Since(began).Milliseconds(), detail
	e.Traffic = &audit.Traffic{BytesIn: sum.in.Load(), BytesOut: sum.out.Load()}
	if failed != nil {
		e.ActivityID, e.TypeUID = audit.NetworkFail, int(audit.ClassSSH)*100+audit.NetworkFail
		e.StatusID, e.Detail = audit.StatusFailure, failed.Error()
	}
	x, was := &e.Unmapped.Sallyport, &of.Unmapped.Sallyport
	x.Phase, x.Protocol, x.Decision = was.Phase, was.Protocol, was.Decision
	x.Sandbox, x.SandboxID, x.Session, x.Tags, x.Owner = was.Sandbox, was.SandboxID, was.Session, was.Tags, was.Owner
	if err := d.o.Recorder.Enqueue(e); err != nil {
		d.o.Logger.Error("an event was lost", "message", "the end of something over SSH", "error", err)
	}
}
