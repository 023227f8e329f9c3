package config

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"sallyport/audit/encoding"
	"sallyport/internal/hostname"
	"sallyport/internal/secretfile"
	"sallyport/policy"
)

// Sink is a receiver of the audit log's records. Each type uses some of the keys.
type Sink struct {
	// Name is what commands and metrics call the sink, and what its position in the log is
	// kept under: up to 32 lower-case letters, digits and dashes. Required.
	// Example: siem
	Name string `yaml:"name"`
	// Type is file, syslog, splunk, otlp, elasticsearch (OpenSearch too), kafka, s3 or
	// https. Required.
	// Example: syslog
	Type string `yaml:"type"`
	// Encoding is what a record is sent as: ocsf (default; 1.9, as it is in the log),
	// ocsf-1.8, ocsf-1.5, ecs or cef. Each holds the record whole.
	// Example: ocsf
	Encoding string `yaml:"encoding"`
	// URL is where requests go: of splunk the collector, of otlp the path for logs, of
	// elasticsearch the cluster, of s3 the endpoint, of https the server. One that begins
	// with http needs addresses.
	// Example: https://splunk.example.com:8088
	URL string `yaml:"url"`
	// Address is a syslog server, host:port, which is sent RFC 5424 over TLS (RFC 5425).
	// Example: siem.example.com:6514
	Address string `yaml:"address"`
	// Brokers are those of kafka to begin with, each host:port.
	// Example: ["kafka.example.com:9093"]
	Brokers []string `yaml:"brokers"`
	// Plain sends syslog or kafka without TLS; needs addresses. Default: false.
	// Example: true
	Plain bool `yaml:"plain"`
	// Addresses are what may be connected to besides public addresses and those that are
	// written in url, address or brokers; without TLS they are the only ones.
	// Example: [10.20.0.0/16]
	Addresses []netip.Prefix `yaml:"addresses"`
	// TLS is what the receiver is verified by. Default: the system's authorities.
	// Example: {caFile: siem-ca.pem}
	TLS SinkTLS `yaml:"tls"`
	// Credential names the credential that the receiver asks for, which no rule may use.
	// Its fields are token for splunk and otlp (a bearer's), apiKey or username and
	// password for elasticsearch, username and password for kafka, accessKeyID and
	// secretAccessKey for s3, and secret for https, which signs requests as Standard
	// Webhooks does.
	// Example: splunk-token
	Credential string `yaml:"credential"`
	// SASL is how to log in to kafka: plain, scram-sha-256 or scram-sha-512.
	// Example: scram-sha-512
	SASL string `yaml:"sasl"`
	// Topic is that of kafka.
	// Example: sallyport-audit
	Topic string `yaml:"topic"`
	// Index is that of elasticsearch, or of splunk (default: the token's).
	// Example: sallyport-audit
	Index string `yaml:"index"`
	// Bucket is that of s3.
	// Example: audit
	Bucket string `yaml:"bucket"`
	// Prefix begins the names of objects in s3. Default: none.
	// Example: sallyport/
	Prefix string `yaml:"prefix"`
	// Region is that of s3. Default: us-east-1.
	// Example: eu-central-1
	Region string `yaml:"region"`
	// Path is the file that records are appended to, a line each.
	// Example: /var/log/sallyport/audit.jsonl
	Path string `yaml:"path"`
	// MaxSize is the size at which the file is rotated. Default: 100MiB.
	// Example: 100MiB
	MaxSize policy.Size `yaml:"maxSize"`
	// Keep is how many rotated files stay. Default: 10.
	// Example: 10
	Keep int `yaml:"keep"`
	// Batch bounds what is sent at once.
	// Example: {events: 500, bytes: 1MiB, wait: 1s}
	Batch SinkBatch `yaml:"batch"`
	// Spool bounds how much of the log may wait for the sink. The log itself is the queue.
	// Example: {bytes: 4GiB, whenFull: block}
	Spool SinkSpool `yaml:"spool"`
}

// SinkTLS is what a receiver is verified by.
type SinkTLS struct {
	// CAFile is a PEM file of authorities to trust. Default: the system's.
	// Example: siem-ca.pem
	CAFile string `yaml:"caFile"`
	// CertFile and KeyFile are PEM files, of the certificate that the receiver asks for
	// and of its key.
	// Example: siem-client.pem
	CertFile string `yaml:"certFile"`
	// KeyFile is the PEM file of CertFile's key, which nobody else can read (0600).
	// Example: siem-client.key
	KeyFile string `yaml:"keyFile"`
	// ServerName is the name in the receiver's certificate. Default: the host.
	// Example: siem.example.com
	ServerName string `yaml:"serverName"`
}

// SinkBatch bounds what is sent at once: what is met first ends a batch.
type SinkBatch struct {
	// Events is a number of records, from 1 to 100000. Default: 500; 100000 for s3.
	// Example: 500
	Events int `yaml:"events"`
	// Bytes is the size of the records, from 64KiB to 64MiB. A sink takes up to four times
	// as much memory. Default: 1MiB; 4MiB for s3.
	// Example: 1MiB
	Bytes policy.Size `yaml:"bytes"`
	// Wait is how long the first record waits for others, from 100ms to 1h. Default: 1s;
	// 1m for s3.
	// Example: 1s
	Wait Duration `yaml:"wait"`
}

// SinkSpool bounds how much of the log may wait for a sink.
type SinkSpool struct {
	// Bytes is how much, from 1MiB. Default: 4GiB.
	// Example: 4GiB
	Bytes policy.Size `yaml:"bytes"`
	// WhenFull is what becomes of more: block (default) refuses requests of sandboxes, with
	// the sink's name, until the sink has caught up; drop-shipped-only lets them go on, and
	// the records wait beyond the bound, since only what every sink has is ever removed.
	// Example: drop-shipped-only
	WhenFull string `yaml:"whenFull"`
}

const (
	maxSinks      = 16
	whenFullBlock = "block"
)

// Blocks says whether the data path stops when the spool is full.
func (s SinkSpool) Blocks() bool { return s.WhenFull == whenFullBlock }

// sinkKeys are the keys that a type needs and may have, besides those of all.
var sinkKeys = map[string]struct{ needs, may []string }{
	"file":          {[]string{"path"}, []string{"maxSize", "keep"}},
	"syslog":        {[]string{"address"}, []string{"plain", "tls", "addresses"}},
	"splunk":        {[]string{"url", "credential"}, []string{"index", "tls", "addresses"}},
	"otlp":          {[]string{"url"}, []string{"credential", "tls", "addresses"}},
	"elasticsearch": {[]string{"url", "index"}, []string{"credential", "tls", "addresses"}},
	"kafka":         {[]string{"brokers", "topic"}, []string{"plain", "sasl", "credential", "tls", "addresses"}},
	"s3":            {[]string{"url", "bucket"}, []string{"prefix", "region", "credential", "tls", "addresses"}},
	"https":         {[]string{"url"}, []string{"credential", "tls", "addresses"}},
}

// SinkTypes are the types of sinks.
func SinkTypes() []string { return slices.Sorted(maps.Keys(sinkKeys)) }

// fill sets defaults.
func (s *Sink) fill() {
	s.Encoding = cmp.Or(s.Encoding, encoding.Names()[0])
	s.Spool.Bytes = cmp.Or(s.Spool.Bytes, 4<<30)
	s.Spool.WhenFull = cmp.Or(s.Spool.WhenFull, whenFullBlock)
	switch s.Type {
	case "file":
		s.MaxSize = cmp.Or(s.MaxSize, 100<<20)
		s.Keep = cmp.Or(s.Keep, 10)
	case "s3":
		s.Region = cmp.Or(s.Region, "us-east-1")
		s.Batch.Events = cmp.Or(s.Batch.Events, 100_000)
		s.Batch.Bytes = cmp.Or(s.Batch.Bytes, 4<<20)
		s.Batch.Wait = cmp.Or(s.Batch.Wait, Duration(time.Minute))
	}
	s.Batch.Events = cmp.Or(s.Batch.Events, 500)
	s.Batch.Bytes = cmp.Or(s.Batch.Bytes, 1<<20)
	s.Batch.Wait = cmp.Or(s.Batch.Wait, Duration(time.Second))
}

// paths are the files that s names.
func (s *Sink) paths() []*string {
	return []*string{&s.Path, &s.TLS.CAFile, &s.TLS.CertFile, &s.TLS.KeyFile}
}

// SinkLogins lists, by the name of a credential, the sinks that it is for.
func (c *Config) SinkLogins() map[string][]string {
	logins := map[string][]string{}
	for _, s := range c.Audit.Sinks {
		if s.Credential != "" {
			logins[s.Credential] = append(logins[s.Credential], s.Name)
		}
	}
	return logins
}

// shortName is what names of sinks and of stores look like.
var shortName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)

func (v *validator) sinks(c *Config) {
	list := c.Audit.Sinks
	if len(list) > maxSinks {
		v.fail("audit.sinks", fmt.Sprintf("are %d, more than %d", len(list), maxSinks), "have one receiver pass records on")
	}
	for i, s := range list {
		at := fmt.Sprintf("audit.sinks[%d]", i)
		switch {
		case !shortName.MatchString(s.Name):
			v.fail(at+".name", fmt.Sprintf("%q is not the name of a sink", s.Name), "write up to 32 lower-case letters, digits and dashes")
		case slices.ContainsFunc(list[:i], func(o Sink) bool { return o.Name == s.Name }):
			v.fail(at+".name", fmt.Sprintf("%q is there twice", s.Name), "give each sink a name of its own")
		}
		v.oneOf(at+".encoding", s.Encoding, encoding.Names()...)
		v.oneOf(at+".spool.whenFull", s.Spool.WhenFull, whenFullBlock, "drop-shipped-only")
		between(v, at+".spool.bytes", s.Spool.Bytes, 1<<20, 1<<50, "from 1MiB", "write a value as 4GiB, or leave it out for the default")
		between(v, at+".batch.events", s.Batch.Events, 1, 100_000, "from 1 to 100000", "write a value as 500, or leave it out for the default")
		between(v, at+".batch.bytes", s.Batch.Bytes, 64<<10, 64<<20, "from 64KiB to 64MiB", "write a value as 1MiB, or leave it out for the default")
		between(v, at+".batch.wait", time.Duration(s.Batch.Wait), 100*time.Millisecond, time.Hour, "from 100ms to 1h", "write a value as 1s, or leave it out for the default")
		if _, known := sinkKeys[s.Type]; !known {
			v.oneOf(at+".type", s.Type, SinkTypes()...)
			continue
		}
		v.sinkKeys(at, s)
		v.receiver(at, s)
		v.sinkTLS(at+".tls", s.TLS)
		v.sinkCredential(at, s, c)
	}
}

// sinkKeys checks that s has the keys of its type, and no others.
func (v *validator) sinkKeys(at string, s Sink) {
	keys := sinkKeys[s.Type]
	value := reflect.ValueOf(s)
	for i := range value.NumField() {
		key := value.Type().Field(i).Tag.Get("yaml")
		switch missing := value.Field(i).IsZero(); {
		case slices.Contains([]string{"name", "type", "encoding", "batch", "spool"}, key):
		case missing && slices.Contains(keys.needs, key):
			v.fail(at+"."+key, "is missing, and a sink of type "+s.Type+" needs it", "see `sallyport audit sink add "+s.Type+"`")
		case !missing && !slices.Contains(keys.needs, key) && !slices.Contains(keys.may, key):
			v.fail(at+"."+key, "is of no use to a sink of type "+s.Type, "remove it: its keys are "+strings.Join(append(slices.Clone(keys.needs), keys.may...), ", "))
		}
	}
}

// receiver checks where records go.
func (v *validator) receiver(at string, s Sink) {
	if s.URL != "" {
		u, err := hostname.ParseURL(s.URL)
		switch {
		case err != nil && strings.Contains(s.URL, "@"):
			v.fail(at+".url", "has a user or password in it", "write it without, and the login as a credential")
		case err != nil:
			v.fail(at+".url", fmt.Sprintf("%q is %v", s.URL, err), "write one as https://siem.example.com:8088")
		case u.RawQuery != "":
			v.fail(at+".url", "has a query, and is shown in status", "write it without: what is secret in it as a credential")
		case u.Scheme == "http" && len(s.Addresses) == 0:
			v.fail(at+".url", "sends records in the clear", "write https://"+u.Host+", or name its addresses where the network is yours")
		}
	}
	if s.Address != "" {
		v.listen(at+".address", s.Address)
	}
	for i, b := range s.Brokers {
		v.listen(fmt.Sprintf("%s.brokers[%d]", at, i), b)
	}
	if s.Plain && len(s.Addresses) == 0 {
		v.fail(at+".plain", "sends records in the clear", "remove it, or name the receiver's addresses where the network is yours")
	}
	if s.SASL != "" {
		v.oneOf(at+".sasl", s.SASL, "plain", "scram-sha-256", "scram-sha-512")
	}
	switch {
	case s.Plain && s.SASL == "plain":
		v.fail(at+".sasl", "sends the password in the clear", "write scram-sha-512, or remove plain: true")
	case s.Type == "kafka" && (s.SASL == "") != (s.Credential == ""):
		v.fail(at+".sasl", "and credential belong together", "write both, or none")
	}
}

// sinkTLS checks that certificates can be used.
func (v *validator) sinkTLS(at string, t SinkTLS) {
	v.roots(at+".caFile", t.CAFile)
	if (t.CertFile == "") != (t.KeyFile == "") {
		v.fail(at, "has one of certFile and keyFile", "write both")
		return
	}
	if t.CertFile == "" {
		return
	}
	public, err := os.ReadFile(t.CertFile)
	if err != nil {
		v.fail(at+".certFile", fmt.Sprintf("cannot be read: %v", err), "write the path of a PEM file, relative to this one")
		return
	}
	private, err := secretfile.Read(t.KeyFile, maxKeyFile)
	if err != nil {
		v.fail(at+".keyFile", fmt.Sprintf("cannot be read: %v", err), "write the path of a PEM file that only the daemon can read")
		return
	}
	if _, err := tls.X509KeyPair(public, private); err != nil {
		v.fail(at+".certFile", fmt.Sprintf("and keyFile cannot be used: %v", err), "write the PEM files of one certificate and of its key")
	}
}

// maxKeyFile bounds the PEM file of a key, in bytes.
const maxKeyFile = 1 << 20

// sinkCredential checks that a credential is there, and that nothing else is given it.
func (v *validator) sinkCredential(at string, s Sink, c *Config) {
	name := s.Credential
	if name == "" {
		return
	}
	if !slices.ContainsFunc(c.Credentials, func(o policy.Credential) bool { return o.Name == name }) {
		v.fail(at+".credential", fmt.Sprintf("no credential is named %q", name), "add it to credentials")
	}
	var others []string
	for i, r := range c.EgressAuth {
		if r.AuthRef == name {
			others = append(others, fmt.Sprintf("egressAuth[%d]", i))
		}
	}
	if c.ProxyLogins()[name] != nil {
		others = append(others, "a rule's upstream proxy")
	}
	if c.RegistryLogins()[name] != nil {
		others = append(others, "registries")
	}
	if b := c.Policy.Bundle; b != nil && b.AuthRef == name {
		others = append(others, "policy.bundle")
	}
	if len(others) > 0 {
		v.fail(at+".credential", fmt.Sprintf("%q is used by %s too", name, strings.Join(others, " and ")), "give the receiver a credential of its own")
	}
}
