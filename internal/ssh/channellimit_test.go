package ssh

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"sallyport/internal/test/must"
)

// channels opens as many as there is room for, by connections of a key, and returns
// those and why there was no room for more.
func (p *sshTest) channels(by ssh.Signer, most int) (list []ssh.Channel, full *ssh.OpenChannelError) {
	p.t.Helper()
	for len(list) < most {
		c, err := p.dial("demo", by)
		must.OK(p.t, err)
		p.t.Cleanup(func() { _ = c.Close() })
		for range min(maxUses, most-len(list)) {
			ch, requests, err := c.OpenChannel("session", nil)
			if errors.As(err, &full) {
				return list, full
			}
			must.OK(p.t, err)
			go ssh.DiscardRequests(requests)
			list = append(list, ch)
		}
	}
	return list, nil
}

// The memory that clients can take of the process is bounded by the channels that one key and
// all of them can have open, whatever is done with those.
func TestRoom(t *testing.T) {
	p := newSSHTest(t)
	var signers []ssh.Signer
	keys := p.keys()
	for range maxChannels/channelsOfKey + 1 {
		s := newSigner(t)
		signers = append(signers, s)
		keys = append(keys, Key{Name: "other", Key: s.PublicKey(), Sandboxes: []string{"demo"}})
	}
	p.server.Use(keys)
	refused := func(what string, full *ssh.OpenChannelError, says string) {
		t.Helper()
		if full == nil || full.Reason != ssh.ResourceShortage || !strings.Contains(full.Message, says) {
			t.Errorf("%s: %v", what, full)
		}
	}
	first, full := p.channels(signers[0], channelsOfKey+1)
	if len(first) != channelsOfKey {
		t.Errorf("one key has %d channels, want %d", len(first), channelsOfKey)
	}
	refused("one more of a key", full, "64 sessions and forwarded connections are open by this key")
	all := len(first)
	for _, s := range signers[1 : len(signers)-1] {
		list, _ := p.channels(s, channelsOfKey)
		all += len(list)
	}
	if all != maxChannels {
		t.Errorf("there are %d channels, want %d", all, maxChannels)
	}
	last := signers[len(signers)-1]
	_, full = p.channels(last, 1)
	refused("one more of all", full, "192 sessions and forwarded connections are open by all keys")
	_ = first[0].Close()
	p.await("a place that has been left", func() bool { list, _ := p.channels(last, 1); return len(list) == 1 })
}
