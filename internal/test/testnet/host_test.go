package testnet_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

func newHost(t *testing.T, name, address string, also ...netip.Prefix) *testnet.Host {
	t.Helper()
	testnet.Privileged(t)
	return testnet.NewHost(t, testnet.Config{Name: name, Address: netip.MustParsePrefix(address), Also: also})
}

func TestIsolate(t *testing.T) {
	testnet.Privileged(t)
	links, err := net.Interfaces()
	must.OK(t, err)
	if len(links) == 0 || links[0].Flags&net.FlagUp == 0 {
		t.Errorf("lo is not up: %v", links)
	}
	for _, l := range links {
		if l.Name == "eth0" {
			t.Errorf("the machine's %s is here: %v", l.Name, links)
		}
	}
}

func TestListen(t *testing.T) {
	v6 := netip.MustParsePrefix("2001:db8::10/64")
	one := newHost(t, "one", "198.51.100.10/24", v6)
	two := newHost(t, "two", "198.51.100.20/24") // the same network
	for _, h := range []*testnet.Host{one, two} {
		l, err := h.Listen(8080)
		must.OK(t, err)
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprintf(c, "%s to %s", h.Name(), c.RemoteAddr().(*net.TCPAddr).IP)
				c.Close()
			}
		}()
	}
	tests := []struct{ name, address, want string }{
		{"first host", "198.51.100.10:8080", "one to 198.51.100.1"},
		{"second host", "198.51.100.20:8080", "two to 198.51.100.1"},
		{"IPv6", "[2001:db8::10]:8080", "one to 2001:db8::1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := net.DialTimeout("tcp", tt.address, time.Minute)
			must.OK(t, err)
			defer c.Close()
			got, err := io.ReadAll(c)
			if err != nil || string(got) != tt.want {
				t.Errorf("got %q, %v, want %q", got, err, tt.want)
			}
		})
	}
	t.Run("no such host", func(t *testing.T) {
		if c, err := net.DialTimeout("tcp", "198.51.100.30:8080", time.Second); err == nil {
			c.Close()
			t.Error("connected")
		}
	})
}

func TestDialAndDo(t *testing.T) {
	h := newHost(t, "h", "203.0.113.10/24")
	l, err := net.Listen("tcp", "203.0.113.1:0")
	must.OK(t, err)
	defer l.Close()
	c, err := h.Dial(context.Background(), "tcp", l.Addr().String())
	must.OK(t, err)
	defer c.Close()
	if got := c.LocalAddr().(*net.TCPAddr).IP.String(); got != "203.0.113.10" {
		t.Errorf("dialled from %s", got)
	}
	if _, err := h.Dial(context.Background(), "tcp", "example.test:80"); err == nil {
		t.Error("Dial took a name")
	}
	var out []byte
	must.OK(t, h.Do(func() (err error) { out, err = exec.Command("cat", "/proc/net/dev").Output(); return err }))
	if links, _ := net.Interfaces(); len(links) == 0 {
		t.Error("no interface at home")
	}
	if want := "eth0:"; !contains(string(out), want) || contains(string(out), h.Link()) {
		t.Errorf("a child of Do is not inside:\n%s", out)
	}
}

func TestClose(t *testing.T) {
	testnet.Privileged(t)
	h, err := testnet.Start(testnet.Config{Name: "gone", Address: netip.MustParsePrefix("198.51.100.10/24")})
	must.OK(t, err)
	for range 2 {
		must.OK(t, h.Close())
	}
	if _, err := net.InterfaceByName(h.Link()); err == nil {
		t.Errorf("%s is still there", h.Link())
	}
	if _, err := h.Listen(1); err == nil {
		t.Error("a closed host listens")
	}
}

func TestStartFails(t *testing.T) {
	testnet.Privileged(t)
	before, _ := net.Interfaces()
	p := netip.MustParsePrefix("198.51.100.10/24")
	for _, cfg := range []testnet.Config{
		{Name: "no address"},
		{Name: "the same address twice", Address: p, Also: []netip.Prefix{p}},
	} {
		if h, err := testnet.Start(cfg); err == nil {
			h.Close()
			t.Errorf("%s: no error", cfg.Name)
		}
	}
	if after, _ := net.Interfaces(); len(after) != len(before) {
		t.Errorf("devices left behind: %v", after)
	}
}
