package e2e

import "testing"

// TestOneDaemon has what leaves a daemon as it was, on one.
func TestOneDaemon(t *testing.T) {
	r := newRig(t, "")
	r.serve()
	r.up()
	r.setKey()
	r.parts(t,
		part{"a reload tells", testReloadTells},
		part{"inside", testInside},
		part{"a shared kernel", testSharedKernel},
		part{"user", testUser},
		part{"no cores", testNoCores},
		part{"datagrams", testDatagrams},
		part{"traps", testTraps},
		part{"unstartable", testUnstartable},
		part{"spoilt sockets", testSpoiltSockets},
	)
}
