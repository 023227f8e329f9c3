package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/audit/encoding"
	"sallyport/audit/sink"
	"sallyport/audit/tree"
	"sallyport/gateway/upstream"
	"sallyport/internal/api"
	"sallyport/internal/config"
	"sallyport/internal/secretfile"
	"sallyport/internal/webhook"
	"sallyport/internal/webhook/signature"
	"sallyport/policy/finding"
)

// sinks are those of the audit log. They end after everything else that writes it, so that
// the last checkpoint leaves too.
type sinks struct {
	*sink.Set
	end    func()
	origin atomic.Pointer[encoding.Origin]
}

// drainWithin is how long the daemon waits at its end for sinks that answer.
const drainWithin = 2 * time.Second

// openSinks opens the sinks of the configuration, which connect to nothing yet.
func (d *daemon) openSinks(ctx context.Context) error {
	d.sinks.Set = sink.NewSet(sink.Options{
		Log: d.cfg.AuditDir(), Dir: filepath.Join(d.cfg.IndexDir(), "sinks"), Dead: filepath.Join(d.cfg.AuditDir(), "dead"),
		Durable: d.auditLog.Durable, Logger: d.log, Secret: d.sinkSecret, Dial: d.dialSink, Encoder: d.sinkEncoder,
		Record: func(ctx context.Context, e *audit.Event) error { return d.auditLog.Append(ctx, e) },
		Hold: func(reason string) {
			if d.supervisor.Hold(reason); reason != "" {
				d.log.Error("nothing leaves: the audit log waits for a sink", "reason", reason)
			}
		},
	})
	plan, err := d.prepareSinks(ctx, d.cfg)
	if err != nil {
		return err
	}
	d.sinks.Use(plan)
	return nil
}

// held is why no request may leave.
func (d *daemon) held() string { return d.sinks.Held() }

// startSinks has the sinks send until endSinks.
func (d *daemon) startSinks() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		// The first records name the log too, whose key is made by now or soon.
		for i := 0; i < 50 && d.origin() == (encoding.Origin{}) && ctx.Err() == nil; i++ {
			time.Sleep(100 * time.Millisecond)
		}
		_ = d.sinks.Run(ctx)
	}()
	d.sinks.end = func() { cancel(); <-done }
}

// endSinks lets the sinks send what the log ends with, and ends them.
func (d *daemon) endSinks() error {
	if d.sinks.end == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), drainWithin)
	defer cancel()
	d.sinks.Drain(ctx, d.auditLog.Durable())
	d.sinks.end()
	return nil
}

// prepareSinks opens what a configuration has that is not in force. Its error joins a
// [finding.Finding] for each sink that cannot be used.
func (d *daemon) prepareSinks(ctx context.Context, cfg *config.Config) (*sink.Plan, error) {
	var list []sink.Config
	for i, s := range cfg.Audit.Sinks {
		c, err := sinkConfig(s)
		if err != nil {
			return nil, sinkFinding(cfg, i, err)
		}
		list = append(list, c)
	}
	plan, err := d.sinks.Prepare(ctx, list)
	var bad *sink.ConfigError
	if errors.As(err, &bad) {
		return nil, sinkFinding(cfg, bad.Index, bad.Err)
	}
	return plan, err
}

func sinkFinding(cfg *config.Config, i int, err error) error {
	path := fmt.Sprintf("audit.sinks[%d]", i)
	f := finding.Finding{Kind: finding.BadValue, Position: cfg.Positions[path], Path: path, Message: err.Error(), Fix: "see docs/operate/sinks.md"}
	if errors.Is(err, sink.ErrOtherLog) {
		f.Fix = "remove that file to have this log sent from its beginning, or give the sink another name"
	}
	return f
}

func sinkConfig(s config.Sink) (c sink.Config, err error) {
	c = sink.Config{
		Name: s.Name, Type: s.Type, Encoding: s.Encoding,
		Path: s.Path, MaxSize: int64(s.MaxSize), Keep: s.Keep, Address: s.Address, URL: s.URL, Index: s.Index,
		Brokers: s.Brokers, Topic: s.Topic, SASL: s.SASL, Bucket: s.Bucket, Prefix: s.Prefix, Region: s.Region,
		Plain: s.Plain, Credential: s.Credential, TLS: sink.TLS{ServerName: s.TLS.ServerName},
		Batch: sink.Batch{Events: s.Batch.Events, Bytes: int64(s.Batch.Bytes), Wait: time.Duration(s.Batch.Wait)},
		Bound: int64(s.Spool.Bytes), Block: s.Spool.Blocks(), Addresses: s.Addresses,
	}
	if s.TLS.CAFile != "" {
		if c.TLS.Roots, err = os.ReadFile(s.TLS.CAFile); err != nil {
			return c, err
		}
	}
	if s.TLS.CertFile != "" {
		if c.TLS.Certificate, err = os.ReadFile(s.TLS.CertFile); err != nil {
			return c, err
		}
		c.TLS.Key, err = secretfile.Read(s.TLS.KeyFile, maxSecretFile)
	}
	return c, err
}

// sinkEncoder returns an encoding by its name.
func (d *daemon) sinkEncoder(name string) (sink.Encoder, error) {
	if _, err := encoding.ByName(name, encoding.Origin{}); err != nil {
		return nil, err
	}
	return func(e auditlog.Entry) ([]byte, error) {
		encode, err := encoding.ByName(name, d.origin())
		if err != nil {
			return nil, err
		}
		return encode(e)
	}, nil
}

// origin says of which log records are; nothing before its key is there.
func (d *daemon) origin() encoding.Origin {
	if o := d.sinks.origin.Load(); o != nil {
		return *o
	}
	key, err := tree.ReadKey(d.cfg.AuditDir())
	if err != nil {
		return encoding.Origin{}
	}
	o := encoding.Origin{Log: key.Log(), Key: key.Name()}
	d.sinks.origin.Store(&o)
	return o
}

// sinkSecret reads the credential of a sink.
func (d *daemon) sinkSecret(ctx context.Context, c sink.Config) (map[string]string, error) {
	fields, err := d.broker.SinkLogin(ctx, c.Credential, c.Name)
	plain := make(map[string]string, len(fields))
	for name, secret := range fields {
		plain[name] = secret.Reveal()
	}
	return plain, err
}

// dialSink connects to a sink's receiver: by TLS to public addresses, and to those that
// its configuration names.
func (d *daemon) dialSink(ctx context.Context, c sink.Config, network, address string) (net.Conn, error) {
	named := c.Addresses
	for _, written := range writtenHosts(c) {
		if ip, err := netip.ParseAddr(written); err == nil {
			named = append(named[:len(named):len(named)], netip.PrefixFrom(ip, ip.BitLen()))
		}
	}
	dialer := net.Dialer{Timeout: 10 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		return upstream.Permit(address, named, !c.Plain && !strings.HasPrefix(c.URL, "http:"))
	}}
	return dialer.DialContext(ctx, network, address)
}

// writtenHosts are the hosts that a sink's configuration names.
func writtenHosts(c sink.Config) (hosts []string) {
	if u, err := url.Parse(c.URL); err == nil {
		hosts = append(hosts, u.Hostname())
	}
	for _, address := range append([]string{c.Address}, c.Brokers...) {
		if host, _, err := net.SplitHostPort(address); err == nil {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// sinkStatus is the state of each sink.
func (d *daemon) sinkStatus() (list []api.Sink) {
	for _, s := range d.sinks.Status() {
		list = append(list, api.Sink(s))
	}
	return list
}

// TestSink records that a sink is tested, and sends it that record.
func (d *daemon) TestSink(ctx context.Context, name string) (api.SinkTest, error) {
	if !d.sinks.Has(name) {
		return api.SinkTest{}, fmt.Errorf("%w: %.64q", api.ErrNoSink, name)
	}
	e := d.changed("sink/"+name, "sink "+name, "tested")
	if err := d.auditLog.Append(ctx, e); err != nil {
		return api.SinkTest{}, err
	}
	written, err := auditlog.Lookup(ctx, d.cfg.AuditDir(), e.ID())
	if err != nil || written == nil {
		return api.SinkTest{}, errors.Join(errors.New("the test's record is not in the log"), err)
	}
	t := api.SinkTest{Sink: name, UID: e.ID(), Sequence: written.Metadata.Sequence}
	for entry, err := range auditlog.Entries(ctx, d.cfg.AuditDir(), auditlog.Query{From: t.Sequence}) {
		if err != nil {
			return t, err
		}
		if t.Answer, err = d.sinks.Test(ctx, name, entry); err != nil {
			t.Error = err.Error()
		}
		break
	}
	return t, ctx.Err()
}

// tellWebhooks starts what tells servers of events. One that cannot go on takes
// nothing else with it.
func (d *daemon) tellWebhooks(ctx context.Context, g *errgroup.Group) error {
	for i, w := range d.cfg.Webhooks {
		text, err := secretfile.Read(w.SecretFile, maxSecretFile)
		if err != nil {
			return fmt.Errorf("webhooks[%d].secretFile: %w", i, err)
		}
		secret, err := signature.ParseSecret(string(text))
		if err != nil {
			return fmt.Errorf("webhooks[%d].secretFile: %s: %w", i, w.SecretFile, err)
		}
		s, err := webhook.New(webhook.Hook{URL: w.URL, Events: w.Events, Secret: secret, Addresses: w.Addresses}, webhook.Options{
			Dir: filepath.Join(d.cfg.IndexDir(), "webhooks"), Last: d.events.Last(ctx), Events: d.events.Read, Logger: d.log,
		})
		if err != nil {
			return err
		}
		g.Go(func() error {
			if err := s.Run(ctx); err != nil {
				d.log.Error("a webhook ends", "url", w.URL, "error", err)
			}
			return nil
		})
	}
	return nil
}
