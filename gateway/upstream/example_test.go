package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"sallyport/gateway/upstream"
)

func ExampleClassify() {
	for _, a := range []string{"1.1.1.1", "::ffff:169.254.169.254", "64:ff9b::a00:1"} {
		fmt.Println(a, upstream.Classify(netip.MustParseAddr(a)))
	}
	// Output:
	// 1.1.1.1 public
	// ::ffff:169.254.169.254 metadata
	// 64:ff9b::a00:1 nat64
}

func ExamplePool_Dial() {
	p := upstream.New(upstream.Options{})
	defer p.Close()
	_, err := p.Dial(context.Background(), upstream.Route{Sandbox: "demo", Host: "10.20.0.7", Port: 5432})
	var denied *upstream.AddressError
	if errors.As(err, &denied) {
		fmt.Println(denied)
	}
	// Output:
	// 10.20.0.7 is 10.20.0.7 (private), which is not dialled unless its rule says upstream: {addresses: ["10.20.0.7"]}
}
