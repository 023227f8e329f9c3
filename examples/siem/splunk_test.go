package siem_test

import (
	"bufio"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"sallyport/audit/auditlog"
	"sallyport/audit/sink"
	"sallyport/internal/test/must"
)

// conf is a file of Splunk's configuration: keys by their stanzas.
func conf(t *testing.T, file string) map[string]map[string]string {
	t.Helper()
	b, err := os.ReadFile(file)
	must.OK(t, err)
	all, stanza := map[string]map[string]string{}, ""
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSuffix(line, "\n")
		key, value, ok := strings.Cut(line, " = ")
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			stanza = strings.Trim(line, "[]")
			all[stanza] = map[string]string{}
		case ok:
			all[stanza][key] = value
		default:
			t.Errorf("%s: %q", file, line)
		}
	}
	return all
}

// The fields that Splunk is to know by other names are those of records.
func TestSplunkFields(t *testing.T) {
	known := map[string]bool{}
	for _, all := range golden(t) {
		for _, r := range all {
			for field := range parse(t, r) {
				known[field] = true
			}
		}
	}
	for _, events := range attacks() {
		for _, r := range recordsOf(t, events) {
			for field := range r {
				known[field] = true
			}
		}
	}
	read := regexp.MustCompile(`"([^"]+)" AS |'([^']+)'`)
	fields := 0
	for key, value := range conf(t, "splunk/props.conf")["sallyport:audit"] {
		if !strings.HasPrefix(key, "FIELDALIAS-") && !strings.HasPrefix(key, "EVAL-") {
			continue
		}
		for _, m := range read.FindAllStringSubmatch(value, -1) {
			fields++
			if field := strings.ReplaceAll(m[1]+m[2], "{}", ""); !known[field] {
				t.Errorf("%s: no record has %s", key, field)
			}
		}
	}
	if fields < 20 {
		t.Errorf("%d fields", fields)
	}
}

// The time is found in each record, once.
func TestSplunkTime(t *testing.T) {
	for stanza, keys := range conf(t, "splunk/props.conf") {
		prefix := regexp.MustCompile(keys["TIME_PREFIX"])
		for name, all := range golden(t) {
			for _, r := range all {
				line := compact(t, r)
				at := prefix.FindAllIndex(line, -1)
				length, _ := strconv.Atoi(keys["MAX_TIMESTAMP_LOOKAHEAD"])
				if len(at) != 1 || string(line[at[0][1]:at[0][1]+length]) != strconv.FormatInt(parse(t, line).time(), 10) {
					t.Errorf("%s: the time of %s is at %v", stanza, name, at)
				}
			}
		}
	}
}

// A message of the syslog sink becomes the record, with the host that sent it.
func TestSplunkSyslog(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	defer l.Close()
	messages := make(chan string, 1)
	go func() {
		defer close(messages)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		in := bufio.NewReader(conn)
		length, _ := in.ReadString(' ')
		n, _ := strconv.Atoi(strings.TrimSpace(length))
		message := make([]byte, n)
		_, _ = io.ReadFull(in, message)
		messages <- string(message)
	}()
	dir := t.TempDir()
	folder := filepath.Join(dir, "audit")
	log, err := auditlog.Open(folder, auditlog.Options{})
	must.OK(t, err)
	defer log.Close()
	event := request("demo", "api.github.com", "", false, morning)[0]
	event.Unmapped.Sallyport.Reason = `] {"x": 1}`
	must.OK(t, log.Append(t.Context(), event))
	send(t, folder, dir, sink.Config{
		Name: "relay", Type: sink.Syslog, Address: l.Addr().String(), Plain: true,
		Batch: sink.Batch{Events: 1, Bytes: 1 << 20, Wait: time.Millisecond}, Bound: 1 << 30,
	})
	message := <-messages
	transforms := conf(t, "splunk/transforms.conf")
	host, _ := os.Hostname()
	for _, name := range strings.Split(conf(t, "splunk/props.conf")["sallyport:syslog"]["TRANSFORMS-sallyport"], ", ") {
		m := regexp.MustCompile(transforms[name]["REGEX"]).FindStringSubmatch(message)
		if m == nil {
			t.Fatalf("%s does not match %s", name, message)
		}
		switch transforms[name]["DEST_KEY"] {
		case "MetaData:Host":
			if m[1] != host {
				t.Errorf("host %q, want %q", m[1], host)
			}
		case "_raw":
			message = m[1]
		}
	}
	if r := parse(t, []byte(message)); r["metadata.uid"][0] != event.ID() {
		t.Errorf("the record is %s", message)
	}
}
