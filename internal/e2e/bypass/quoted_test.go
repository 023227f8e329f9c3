package bypass

import (
	"io"
	"net/http"
	"testing"
)

// quotes asks for an answer in which the upstream says what it was sent with an
// earlier request: at a host that no credential is for, with TLS or without.
// That all of it was there says the status, which the upstream gives only then.
func quotes(how string) attempt {
	return attempt{name: how, sent: ask(get(other, "/v1/quoted/"+how)).at(other + ":443"), want: "210", log: "allow other",
		saw:   []string{"GET other.example.test /v1/quoted/" + how + " none"},
		legal: ask(get(other, "/v1/legal")).at(other + ":443"), legalSaw: "GET other.example.test /v1/legal none"}
}

var quoted = []attempt{
	quotes("header"),
	quotes("trailer"),
	quotes("body"),
	quotes("location"),
	quotes("events"),
	{name: "without TLS", sent: ask(get(other, "/v1/quoted/body")).at(other + ":80").bare(), want: "210", log: "allow other",
		saw:   []string{"GET other.example.test /v1/quoted/body none"},
		legal: ask(get(other, "/v1/legal")).at(other + ":80").bare(), legalSaw: "GET other.example.test /v1/legal none"},
	{name: "as a slice, where the credential went", sent: ask(get(api, "/v1/quoted/body", "Range: bytes=8-")), want: "210", log: "allow api",
		saw: []string{"GET api.example.test /v1/quoted/body ours"}},
}

// testQuoted has the credential sent once, and then looks for it in answers to
// requests that it does not go with.
func testQuoted(t *testing.T, r *rig) {
	r.a.try(t, attempt{sent: legal, want: "200", log: "allow api", saw: []string{legalSaw}})
	for _, a := range quoted {
		t.Run(a.name, func(t *testing.T) { a.run(t, r.a) })
	}
}

// quote says the credential that was kept of an earlier request.
func quote(w http.ResponseWriter, how, kept string) {
	const status = 210 // nobody else's
	if kept == "" {
		w.WriteHeader(http.StatusConflict)
		return
	}
	switch how {
	case "header":
		w.Header().Set("X-Kept", kept)
	case "location":
		w.Header().Set("Location", "/?"+kept)
	case "trailer":
		w.Header().Set("Trailer", "X-Kept")
	case "events":
		w.Header().Set("Content-Type", "text/event-stream")
	}
	w.WriteHeader(status)
	switch how {
	case "trailer":
		_, _ = io.WriteString(w, "upstream\n")
		w.Header().Set("X-Kept", kept)
	case "events":
		for _, piece := range []string{"data: " + kept[:9], kept[9:] + "\n\n"} {
			_, _ = io.WriteString(w, piece)
			_ = http.NewResponseController(w).Flush()
		}
	case "body":
		_, _ = io.WriteString(w, "you sent "+kept+"\n")
	}
}
