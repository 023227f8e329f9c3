package upstream

import (
	"net/netip"
	"regexp"
	"testing"

	"sallyport/internal/test/must"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		addr string
		want Class
	}{
		{"1.1.1.1", Public}, {"198.17.255.255", Public}, {"198.20.0.0", Public}, {"172.32.0.0", Public},
		{"100.63.255.255", Public}, {"100.128.0.0", Public}, {"223.255.255.255", Public}, {"11.0.0.0", Public},
		{"0.0.0.0", Unspecified}, {"0.0.0.1", Reserved}, {"0.255.255.255", Reserved},
		{"127.0.0.1", Loopback}, {"127.255.255.255", Loopback},
		{"10.0.0.0", Private}, {"172.16.0.1", Private}, {"172.31.255.255", Private}, {"192.168.0.1", Private},
		{"169.254.1.1", LinkLocal}, {"169.254.169.254", Metadata}, {"169.254.170.2", Metadata},
		{"100.100.100.200", Metadata}, {"168.63.129.16", Metadata}, {"192.0.0.192", Metadata},
		{"100.64.0.1", CGNAT}, {"100.127.255.255", CGNAT},
		{"192.0.2.1", Documentation}, {"198.51.100.1", Documentation}, {"203.0.113.255", Documentation},
		{"198.18.0.1", Benchmark}, {"198.19.255.255", Benchmark},
		{"224.0.0.1", Multicast}, {"239.255.255.255", Multicast},
		{"240.0.0.1", Reserved}, {"255.255.255.254", Reserved}, {"255.255.255.255", Broadcast},
		{"192.0.0.8", Reserved}, {"192.88.99.1", SixToFour},

		{"2606:4700::1111", Public}, {"2001:4860:4860::8888", Public}, {"2620:4f:8000::1", Public},
		{"::", Unspecified}, {"::1", Loopback}, {"::2", Reserved},
		{"fc00::1", UniqueLocal}, {"fdff::1", UniqueLocal}, {"fec0::1", UniqueLocal},
		{"fe80::1", LinkLocal}, {"fe80::1%eth0", LinkLocal}, {"febf::1", LinkLocal},
		{"fd00:ec2::254", Metadata}, {"fe80::a9fe:a9fe", Metadata}, {"fd20:ce::254", Metadata},
		{"2001:db8::1", Documentation}, {"3fff::1", Documentation}, {"3fff:1000::", Public},
		{"2001:2::1", Benchmark}, {"2001:10::1", Reserved}, {"2001:20::1", Reserved}, {"2001:1::1", Reserved},
		{"2001::1", Teredo}, {"2002:0a00:0001::", SixToFour}, {"2002:0808:0808::", SixToFour},
		{"64:ff9b::10.0.0.1", NAT64}, {"64:ff9b::8.8.8.8", NAT64}, {"64:ff9b:1::1", NAT64},
		{"ff02::1", Multicast}, {"100::1", Reserved}, {"4000::1", Reserved}, {"5f00::1", Reserved},

		{"::ffff:127.0.0.1", Loopback}, {"::ffff:169.254.169.254", Metadata}, {"::ffff:1.1.1.1", Public},
		{"::ffff:0.0.0.0", Unspecified}, {"::127.0.0.1", Loopback}, {"::169.254.169.254", Metadata},
		{"::10.0.0.1", Private}, {"::1.1.1.1", Reserved},
	} {
		t.Run(tt.addr, func(t *testing.T) {
			if got := Classify(netip.MustParseAddr(tt.addr)); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
	if got := Classify(netip.Addr{}); got == Public {
		t.Error("the zero address is public")
	}
}

func TestPermitted(t *testing.T) {
	t.Parallel()
	local := []netip.Prefix{
		netip.MustParsePrefix("10.231.0.0/16"), netip.MustParsePrefix("203.0.113.9/32"), netip.MustParsePrefix("8.8.4.4/32"),
		netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("fd12::/64"),
	}
	for _, tt := range []struct {
		name, addr string
		named      []string
		class      Class
		ok         bool
	}{
		{"public", "1.1.1.1", nil, Public, true},
		{"public though others are named", "1.1.1.1", []string{"10.0.0.0/8"}, Public, true},
		{"private", "10.0.0.1", nil, Private, false},
		{"private, named", "10.0.0.1", []string{"10.0.0.1"}, Private, true},
		{"private, prefix named", "10.0.0.1", []string{"10.1.2.3/8"}, Private, true},
		{"private, another named", "10.0.0.1", []string{"10.0.0.2", "192.168.0.0/16"}, Private, false},
		{"mapped", "::ffff:10.0.0.1", nil, Private, false},
		{"mapped, named as IPv4", "::ffff:10.0.0.1", []string{"10.0.0.0/24"}, Private, true},
		{"named as mapped", "10.0.0.1", []string{"::ffff:10.0.0.0/104"}, Private, true},
		{"IPv6 everything does not name IPv4", "10.0.0.1", []string{"::/0"}, Private, false},
		{"loopback", "127.0.0.1", nil, Loopback, false},
		{"loopback, named", "127.0.0.1", []string{"127.0.0.0/8"}, Loopback, true},
		{"own public address", "8.8.4.4", nil, Local, false},
		{"own address, named", "203.0.113.9", []string{"203.0.113.9"}, Local, true},
		{"own address inside a named prefix", "203.0.113.9", []string{"203.0.113.0/24"}, Local, false},
		{"neighbour of own address", "203.0.113.8", []string{"203.0.113.0/24"}, Documentation, true},
		{"sandbox inside a named prefix", "10.231.0.7", []string{"10.0.0.0/8"}, Local, false},
		{"sandbox network, named", "10.231.0.7", []string{"10.231.0.0/16"}, Local, true},
		{"one sandbox, named", "10.231.0.7", []string{"10.231.0.7"}, Local, true},
		{"IPv6 sandbox", "fd12::1", []string{"fd00::/8"}, Local, false},
		{"metadata", "169.254.169.254", nil, Metadata, false},
		{"metadata inside a named prefix", "169.254.169.254", []string{"169.254.0.0/16"}, Metadata, false},
		{"metadata inside everything", "169.254.169.254", []string{"0.0.0.0/0"}, Metadata, false},
		{"metadata, named", "169.254.169.254", []string{"169.254.169.254"}, Metadata, true},
		{"unspecified, named", "0.0.0.0", []string{"0.0.0.0"}, Unspecified, false},
		{"unspecified IPv6, named", "::", []string{"::/0"}, Unspecified, false},
		{"multicast, named", "224.0.0.1", []string{"224.0.0.0/4"}, Multicast, false},
		{"broadcast, named", "255.255.255.255", []string{"0.0.0.0/0"}, Broadcast, false},
		{"NAT64", "64:ff9b::8.8.8.8", nil, NAT64, false},
		{"NAT64, named, to public", "64:ff9b::8.8.8.8", []string{"64:ff9b::/96"}, NAT64, true},
		{"NAT64, named, to private", "64:ff9b::10.0.0.1", []string{"64:ff9b::/96"}, Private, false},
		{"NAT64, both named", "64:ff9b::10.0.0.1", []string{"64:ff9b::/96", "10.0.0.0/8"}, Private, true},
		{"6to4, named, to loopback", "2002:7f00:1::", []string{"2002::/16"}, Loopback, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			named, err := parseAddresses(tt.named)
			must.OK(t, err)
			class, ok := permitted(netip.MustParseAddr(tt.addr).Unmap(), named, local)
			if ok != tt.ok {
				t.Errorf("permitted %v, want %v (class %v)", ok, tt.ok, class)
			}
			if !tt.ok && class != tt.class {
				t.Errorf("class %v, want %v", class, tt.class)
			}
		})
	}
	for _, bad := range []string{"", "10.0.0.0/33", "010.0.0.1", "example.test", "10.0.0.1-10.0.0.9", "fe80::1%eth0"} {
		if _, err := parseAddresses([]string{bad}); err == nil {
			t.Errorf("%q was read as an address", bad)
		}
	}
}

func TestCheckHost(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		host string
		addr string // of a literal
		err  error
	}{
		{host: "example.test"}, {host: "a"}, {host: "_x.example.test"}, {host: "1.example.test"}, {host: "0x7f.example.test"},
		{host: "example.0xyz"}, {host: "127.0.0.1.example.test"},
		{host: "198.51.100.1", addr: "198.51.100.1"}, {host: "2001:db8::1", addr: "2001:db8::1"},
		{host: "::ffff:127.0.0.1", addr: "127.0.0.1"},
		{host: "127.1", err: errNumeric}, {host: "0x7f.1", err: errNumeric}, {host: "2130706433", err: errNumeric},
		{host: "0x7f000001", err: errNumeric}, {host: "0177.0.0.1", err: errNumeric}, {host: "127.0.0.01", err: errNumeric},
		{host: "0x7f.0x0.0x0.0x1", err: errNumeric}, {host: "1.2.3.4.5", err: errNumeric}, {host: "256.1.1.1", err: errNumeric},
		{host: "example.0x", err: errNumeric}, {host: "example.123", err: errNumeric},
		{host: "", err: errNotHost}, {host: "a..b", err: errNotHost}, {host: ".", err: errNotHost}, {host: "[::1]", err: errNotHost},
		{host: "fe80::1%eth0", err: errNotHost}, {host: "a b", err: errNotHost}, {host: "a/b", err: errNotHost},
		{host: "a@b", err: errNotHost}, {host: "a:80", err: errNotHost}, {host: "１２７.0.0.1", err: errNotHost},
		{host: "example.test\x00", err: errNotHost}, {host: "-a.test", err: errNotHost}, {host: "*.test", err: errNotHost},
	} {
		t.Run(tt.host, func(t *testing.T) {
			addr, err := checkHost(tt.host)
			if err != tt.err {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			want := netip.Addr{}
			if tt.addr != "" {
				want = netip.MustParseAddr(tt.addr)
			}
			if addr != want {
				t.Errorf("got %v, want %v", addr, want)
			}
		})
	}
}

// FuzzClassify holds what must be true of every address: no spelling of a
// non-public IPv4 address inside an IPv6 one is public.
func FuzzClassify(f *testing.F) {
	f.Add([]byte{127, 0, 0, 1})
	f.Add(netip.MustParseAddr("64:ff9b::a00:1").AsSlice())
	f.Fuzz(func(t *testing.T, b []byte) {
		a, ok := netip.AddrFromSlice(b)
		if !ok {
			return
		}
		if a.Is4() {
			inner := a.As4()
			for _, head := range []string{"::", "::ffff:0:0", "64:ff9b::"} {
				w := netip.MustParseAddr(head).As16()
				copy(w[12:], inner[:])
				if c := Classify(netip.AddrFrom16(w)); c == Public && Classify(a) != Public {
					t.Errorf("%v is public, %v is %v", netip.AddrFrom16(w), a, Classify(a))
				}
			}
		}
		if c := Classify(a); c == Public && (a.IsLoopback() || a.IsPrivate() || a.IsMulticast() || a.IsLinkLocalUnicast() || a.IsUnspecified()) {
			t.Errorf("%v is public", a)
		}
	})
}

// aton is what inet_aton(3) reads: up to four numbers, decimal, octal or hex.
var aton = regexp.MustCompile(`(?i)^((0x[0-9a-f]*|[0-9]+)(\.|$)){1,4}$`)

// FuzzCheckHost holds that no name we would look up is one that inet_aton(3)
// reads as an address.
func FuzzCheckHost(f *testing.F) {
	for _, h := range []string{"example.test", "127.1", "0x7f.1", "0", "1.2.3.4", "0x", "08", "a.0x1"} {
		f.Add(h)
	}
	f.Fuzz(func(t *testing.T, host string) {
		a, err := checkHost(host)
		if err != nil || a.IsValid() {
			return
		}
		if aton.MatchString(host) {
			t.Errorf("%q would be looked up", host)
		}
	})
}
