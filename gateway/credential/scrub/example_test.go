package scrub_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"

	"sallyport/gateway/credential/scrub"
)

func ExampleScrubber_Response() {
	s := scrub.New([]scrub.Value{{Text: "sk-live-0123456789", Found: scrub.Found{Name: "payments"}}})
	r := &http.Response{
		StatusCode: http.StatusUnauthorized,
		Header:     http.Header{"X-Key": {"sk-live-0123456789"}},
		Body:       io.NopCloser(strings.NewReader(`{"error": "no such key: sk\u002dlive\u002d0123456789"}`)),
	}
	hits := 0
	if err := s.Response(r, func(scrub.Found) { hits++ }); err != nil {
		fmt.Println("refused:", err)
		return
	}
	body, err := io.ReadAll(r.Body)
	fmt.Println(r.Header.Get("X-Key"), string(body), hits, err)
	// Output: ****************** {"error": "no such key: ****************************"} 2 <nil>
}
