package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The filter covers what the programs do not see: it drops packets that the host would
// forward from or to the bridge, and frames from one port to another.

func tableName(config Config) string { return "sallyport-" + config.Bridge }

var families = []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyARP, nftables.TableFamilyBridge}

// filter replaces the tables of this bridge, each in one transaction.
func filter(config Config) error {
	if err := filterRouted(config); err != nil {
		return fmt.Errorf("dropping forwarded packets with nftables: %w", err)
	}
	if err := filterARP(config); err != nil {
		return fmt.Errorf("dropping address resolution for groups with nftables: %w", err)
	}
	// meta ibrname is a kernel module of its own.
	err := filterBridged(config, [][]expr.Any{by(expr.MetaKeyBRIIIFNAME, config.Bridge)})
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOENT) {
		// The programs on each port keep sandboxes apart without it.
		config.Logger.Info("the filter behind the eBPF programs compares addresses, not the bridge's name; a kernel with CONFIG_NFT_BRIDGE_META has both compared")
		err = filterBridged(config, ofSubnet(config.Subnet))
	}
	if err != nil {
		return fmt.Errorf("dropping frames between ports with nftables: %w", err)
	}
	return nil
}

func unfilter(config Config) error {
	var errs []error
	for _, family := range families {
		c, err := nftables.New()
		if err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
		c.DelTable(&nftables.Table{Name: tableName(config), Family: family})
		if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("deleting nftables table %s: %w", tableName(config), err))
		}
	}
	return errors.Join(errs...)
}

func filterRouted(config Config) error {
	c, table, err := fresh(config, nftables.TableFamilyINet)
	if err != nil {
		return err
	}
	forward := chain(c, table, "forward", nftables.ChainHookForward)
	drop(c, forward, by(expr.MetaKeyIIFNAME, config.Bridge))
	drop(c, forward, by(expr.MetaKeyOIFNAME, config.Bridge))
	// The resolver knows sandboxes by their address: no other interface may send from
	// these. Nor to its own, where others' questions would take the place of sandboxes'.
	input := chain(c, table, "input", nftables.ChainHookInput)
	for _, end := range ofSubnet(config.Subnet)[:2] { // IPv4 by source, and by destination
		match := append(not(by(expr.MetaKeyIIFNAME, config.Bridge)), not(by(expr.MetaKeyIIFNAME, "lo"))...)
		drop(c, input, append(match, end...))
	}
	drop(c, input, linkLocal())
	return c.Flush()
}

// arpInput is NF_ARP_IN of linux/netfilter_arp.h.
var arpInput = nftables.ChainHookRef(0)

func filterARP(config Config) error {
	c, table, err := fresh(config, nftables.TableFamilyARP)
	if err != nil {
		return err
	}
	drop(c, chain(c, table, "input", arpInput), linkLocal())
	return c.Flush()
}

// linkLocal matches frames to a link-local group address (IEEE 802.1D, 7.12.6). Such a
// frame, unless bridged, goes up the stack on the port itself, past the bridge device, and
// no network protocol should be in it. The match is at that place and compares the kind
// first: a chain of the bridge family, or a comparison of addresses, would cost each
// packet of a sandbox.
func linkLocal() []expr.Any {
	group := net.HardwareAddr{0x01, 0x80, 0xc2, 0, 0, 0}
	match := at(expr.PayloadBaseLLHeader, 0, group, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xf0})
	return append([]expr.Any{
		&expr.Meta{Key: expr.MetaKeyPKTTYPE, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.PACKET_MULTICAST}},
	}, match...)
}

func filterBridged(config Config, between [][]expr.Any) error {
	c, table, err := fresh(config, nftables.TableFamilyBridge)
	if err != nil {
		return err
	}
	forward := chain(c, table, "forward", nftables.ChainHookForward)
	for _, match := range between {
		drop(c, forward, match)
	}
	return c.Flush()
}

// fresh begins a transaction that makes the table, or empties it.
func fresh(config Config, family nftables.TableFamily) (*nftables.Conn, *nftables.Table, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, nil, err
	}
	table := &nftables.Table{Name: tableName(config), Family: family}
	c.AddTable(table)
	c.DelTable(table)
	return c, c.AddTable(table), nil
}

// bridgeFilter is NF_BR_PRI_FILTER_BRIDGED of linux/netfilter_bridge.h: ahead of
// bridge netfilter, whose hooks at 0 take IP and ARP past all others at 0.
var bridgeFilter = nftables.ChainPriorityRef(-200)

func chain(c *nftables.Conn, table *nftables.Table, name string, hook *nftables.ChainHook) *nftables.Chain {
	priority := nftables.ChainPriorityFilter
	if table.Family == nftables.TableFamilyBridge {
		priority = bridgeFilter
	}
	return c.AddChain(&nftables.Chain{
		Name: name, Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: hook, Priority: priority,
	})
}

func drop(c *nftables.Conn, chain *nftables.Chain, match []expr.Any) {
	c.AddRule(&nftables.Rule{
		Table: chain.Table, Chain: chain,
		Exprs: append(match, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}),
	})
}

// by matches an interface's name.
func by(key expr.MetaKey, name string) []expr.Any {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: padded},
	}
}

// not inverts the last comparison of a match.
func not(match []expr.Any) []expr.Any {
	match[len(match)-1].(*expr.Cmp).Op = expr.CmpOpNeq
	return match
}

func protocol(ethertype uint16) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{byte(ethertype >> 8), byte(ethertype)}},
	}
}

// at matches masked bytes of a header.
func at(base expr.PayloadBase, offset uint32, value, mask []byte) []expr.Any {
	n := uint32(len(value))
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: base, Offset: offset, Len: n},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: n, Mask: mask, Xor: make([]byte, n)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: value},
	}
}

// ofSubnet matches IPv4 (RFC 791) and ARP (RFC 826) of the subnet by source and
// by destination.
func ofSubnet(subnet netip.Prefix) [][]expr.Any {
	value := subnet.Addr().AsSlice()
	mask := net.CIDRMask(subnet.Bits(), 32)
	var matches [][]expr.Any
	for _, field := range []struct {
		ethertype uint16
		offset    uint32
	}{{unix.ETH_P_IP, 12}, {unix.ETH_P_IP, 16}, {unix.ETH_P_ARP, 14}, {unix.ETH_P_ARP, 24}} {
		match := at(expr.PayloadBaseNetworkHeader, field.offset, value, mask)
		matches = append(matches, append(protocol(field.ethertype), match...))
	}
	return matches
}
