package decode_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"

	"sallyport/gateway/credential/decode"
)

func ExampleNewReader() {
	var body bytes.Buffer
	w := gzip.NewWriter(&body)
	io.WriteString(w, "hello")
	w.Close()

	r, err := decode.NewReader(&body, decode.List([]string{"gzip"}), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := io.ReadAll(r)
	fmt.Println(string(text), err)
	// Output: hello <nil>
}
