package auditlog_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
)

func Example() {
	dir, err := os.MkdirTemp("", "audit")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	trail, err := auditlog.Open(dir, auditlog.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer trail.Close()

	e := audit.New(audit.KindDecision, audit.ClassHTTP, audit.HTTPActivity("GET"))
	e.Time = time.Date(2026, 11, 20, 13, 24, 34, 0, time.UTC).UnixMilli()
	e.Metadata.UID = "0192f0c1-7a00-7000-8000-000000000001"
	e.Action, e.Disposition = audit.ActionDenied, audit.DispositionBlocked
	e.HTTPRequest = &audit.HTTPRequest{Method: "GET", URL: &audit.URL{Scheme: "https", Hostname: "example.test", Path: "/"}}
	e.Unmapped.Sallyport.Sandbox = "demo"
	e.Unmapped.Sallyport.Reason = "no rule allows it"
	if err := trail.Append(context.Background(), e); err != nil {
		log.Fatal(err) // and nothing may be done on it
	}
	for record, err := range auditlog.Pair(context.Background(), dir, auditlog.Query{Sandbox: "demo"}, 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(auditlog.Line(record))
	}
	// Output:
	// 2026-11-20T13:24:34.000Z  demo  DENY  GET https://example.test/  reason="no rule allows it"  0192f0c1-7a00-7000-8000-000000000001
}
