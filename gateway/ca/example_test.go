package ca_test

import (
	"fmt"
	"os"
	"time"

	"sallyport/gateway/ca"
	"sallyport/gateway/mitm"
)

// plain stands for a sealer whose key is kept elsewhere.
type plain struct{}

func (plain) Seal(b []byte) ([]byte, error) { return b, nil }
func (plain) Open(b []byte) ([]byte, error) { return b, nil }

func Example() {
	dir, err := os.MkdirTemp("", "ca")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	authority, err := ca.Open(ca.Options{Dir: dir, Sealer: plain{}})
	if err != nil {
		panic(err)
	}
	if _, err := authority.Root("demo"); err != nil { // what the sandbox trusts
		panic(err)
	}
	config, err := mitm.NewLeaves(authority.Sign, time.Now).ServerConfig("demo", "api.example.com") // what it is shown
	if err != nil {
		panic(err)
	}
	fmt.Println(config.Certificates[0].Leaf.DNSNames)
	// Output:
	// [api.example.com]
}
