package sandbox_test

import (
	"fmt"

	"sallyport/sandbox"
)

// A name is a folder, a container and a host name too.
func ExampleCheckName() {
	fmt.Println(sandbox.CheckName("build-17"))
	fmt.Println(sandbox.CheckName("../etc"))
	// Output:
	// <nil>
	// not a sandbox name: "../etc": use 1 to 63 lower-case letters, digits and hyphens, beginning and ending with a letter or digit
}
