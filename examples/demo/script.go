package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// step is one scene: what a user types and what must come of it.
type step struct {
	title string
	play  func(context.Context, *stage) error
}

var script = []step{
	{"A computer by name: made the first time, the same one after", persistent},
	{"A request to an allowed destination, with plain curl and no key", injected},
	{"The key is not in the sandbox", absent},
	{"Every other way out is closed, and says so where it can", refused},
	{"What the agent remembers outlives the session", remembered},
	{"Each of these is one record", recorded},
	{"The log proves itself", verified},
}

// show runs a shell command in the sandbox, as a user would, and prints both.
func (s *stage) show(ctx context.Context, shell string) (out string, code int, err error) {
	fmt.Printf("$ sallyport run demo -- sh -c '%s'\n", shell)
	return s.inside(ctx, "demo", shell, true)
}

func (s *stage) inside(ctx context.Context, name, shell string, print bool) (string, int, error) {
	data, err := s.command(ctx, "", "run", name, "--", "sh", "-c", shell).CombinedOutput()
	out := strings.TrimRight(string(data), "\n")
	if print && out != "" {
		for line := range strings.Lines(out) {
			fmt.Print("  " + line)
		}
		fmt.Println()
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return out, exit.ExitCode(), nil
	}
	return out, 0, err
}

func proved(format string, a ...any) { fmt.Printf("  ✓ "+format+"\n", a...) }

// want fails the demo when an outcome is not what it must be.
func want(ok bool, format string, a ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf("not as promised: "+format, a...)
}

func persistent(ctx context.Context, s *stage) error {
	s.began = time.Now()
	out, code, err := s.show(ctx, "dmesg | head -1; echo kept > /root/notes; mkdir -p /opt/tool && echo v1 > /opt/tool/version")
	if err == nil {
		err = want(code == 0 && strings.Contains(out, "gVisor"), "exit %d, %q", code, out)
	}
	if err != nil {
		return err
	}
	proved("a gVisor sandbox, created and used in %.1f s", time.Since(s.began).Seconds())
	if out, code, err = s.show(ctx, "cat /root/notes /opt/tool/version"); err != nil {
		return err
	}
	if err := want(code == 0 && out == "kept\nv1", "exit %d, %q", code, out); err != nil {
		return err
	}
	proved("the same one, with its files")
	return nil
}

func injected(ctx context.Context, s *stage) error {
	out, code, err := s.show(ctx, "curl -sS https://api.example.test/v1/models")
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(s.key))
	if err := want(code == 0 && strings.Contains(out, `"saw_key":true`) && strings.Contains(out, hex.EncodeToString(sum[:])[:12]), "exit %d, %q", code, out); err != nil {
		return err
	}
	proved("the upstream saw the key; no proxy variable, no key, the image's own certificates plus one")
	return nil
}

// spill writes all that a search can look at to standard output: environments,
// command lines and every file.
const spill = `env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; tar -C / --one-file-system --exclude=./proc --exclude=./sys -cf - . 2>/dev/null`

// absent searches what comes out of the sandbox for the key in the forms that
// it could take. The search is made on this side: a key to compare with would
// be a key in the sandbox.
func absent(ctx context.Context, s *stage) error {
	inFile, inEnvironment := "canary-"+rand.Text(), "canary-"+rand.Text()
	plant := "echo " + inFile + " > /root/canary; setsid env CANARY=" + inEnvironment + " sleep 60 </dev/null >/dev/null 2>&1 &"
	if out, code, err := s.inside(ctx, "demo", plant, false); err != nil || code != 0 {
		return fmt.Errorf("planting canaries: exit %d, %s: %w", code, out, err)
	}
	fmt.Println("$ sallyport run demo -- sh -c 'env; cat /proc/*/environ /proc/*/cmdline; tar -c /' | search")
	key := []byte(s.key)
	forms := [][]byte{[]byte(inFile), []byte(inEnvironment), key,
		[]byte(base64.StdEncoding.EncodeToString(key))[:16], []byte(hex.EncodeToString(key)), []byte(url.QueryEscape(s.key))}
	c := s.command(ctx, "", "run", "demo", "--", "sh", "-c", spill)
	out, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	found, size, err := search(out, forms)
	if err := errors.Join(err, c.Wait()); err != nil {
		return err
	}
	if err := want(found[0] && found[1], "the search does not find canaries that were planted: %v", found[:2]); err != nil {
		return err
	}
	for _, f := range found[2:] {
		if err := want(!f, "the key is in the sandbox"); err != nil {
			return err
		}
	}
	proved("not in its files, environments or command lines (%d MB); planted canaries are found", size>>20)
	return nil
}

// search says which of the forms a stream holds, and the stream's size in bytes.
func search(r io.Reader, forms [][]byte) (found []bool, size int64, err error) {
	found = make([]bool, len(forms))
	longest := 0
	for _, f := range forms {
		longest = max(longest, len(f))
	}
	buf := make([]byte, 0, 1<<20)
	for {
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf, size = buf[:len(buf)+n], size+int64(n)
		for i, f := range forms {
			found[i] = found[i] || bytes.Contains(buf, f)
		}
		if errors.Is(err, io.EOF) {
			return found, size, nil
		}
		if err != nil {
			return nil, 0, err
		}
		// The possible beginning of a form stays for the next round.
		keep := min(len(buf), longest-1)
		buf = append(buf[:0], buf[len(buf)-keep:]...)
	}
}

func refused(ctx context.Context, s *stage) error {
	for _, url := range []string{"https://unlisted.example.test/", "http://unlisted.example.test/"} {
		out, _, err := s.show(ctx, "curl -sS "+url)
		if err == nil {
			err = want(strings.Contains(out, "unlisted.example.test") && strings.Contains(strings.ToLower(out), "decision"), "%q", out)
		}
		if err != nil {
			return err
		}
	}
	proved("a refusal that an agent can read, with the decision's id")
	neighbour, err := s.neighbour(ctx)
	if err != nil {
		return err
	}
	if err := openFromHere(ctx); err != nil {
		return err
	}
	// TCP is answered by the gateway, with a decision; the rest by nobody.
	ways := []struct{ what, shell string }{
		{"a direct address", "curl -sSk -m 3 https://" + upstreamAddress + "/"},
		{"another sandbox", "curl -sS -m 3 http://" + neighbour + ":8000/"},
		{"the metadata address", "curl -sS -m 3 http://169.254.169.254/latest/meta-data/"},
		{"UDP", fmt.Sprintf(`python3 -c 'import socket; s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(2); s.sendto(bytes.fromhex("%x"),("%s",53)); s.recv(512)'`, query, upstreamAddress)},
		{"IPv6", `python3 -c 'import socket; s=socket.socket(socket.AF_INET6,socket.SOCK_DGRAM); s.settimeout(2); s.sendto(b"x",("2001:db8::1",53)); s.recv(99)'`},
	}
	for _, w := range ways {
		out, code, err := s.inside(ctx, "demo", w.shell, false)
		if err == nil {
			err = want(code != 0 || strings.Contains(out, "Sallyport denied this request"), "%s got through: %q", w.what, out)
		}
		if err != nil {
			return err
		}
		proved("%s: closed", w.what)
	}
	return nil
}

// query asks for the address of api.example.test (RFC 1035, section 4.1).
const query = "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03api\x07example\x04test\x00\x00\x01\x00\x01"

// openFromHere shows that what a sandbox cannot reach is there to be reached.
func openFromHere(ctx context.Context) error {
	var d net.Dialer
	for _, to := range []struct{ network, port string }{{"tcp", "443"}, {"udp", "53"}} {
		conn, err := d.DialContext(ctx, to.network, net.JoinHostPort(upstreamAddress, to.port))
		if err != nil {
			return fmt.Errorf("the upstream is not there even for the host: %w", err)
		}
		defer conn.Close()
		if to.network == "tcp" {
			continue
		}
		if _, err := io.WriteString(conn, query); err != nil {
			return err
		}
		if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
			return err
		}
		if _, err := conn.Read(make([]byte, 512)); err != nil {
			return fmt.Errorf("the upstream does not answer even the host: %w", err)
		}
	}
	return nil
}

// neighbour makes a second sandbox, which serves on port 8000, and returns its
// address.
func (s *stage) neighbour(ctx context.Context) (string, error) {
	const serve = `python3 -m http.server 8000 >/dev/null 2>&1 </dev/null &
for try in $(seq 50); do curl -sS -o /dev/null http://127.0.0.1:8000/ 2>/dev/null && exit; sleep 0.1; done; exit 1`
	if out, code, err := s.inside(ctx, "neighbour", serve, false); err != nil || code != 0 {
		return "", fmt.Errorf("a server in a second sandbox: exit %d, %q, %w", code, out, err)
	}
	out, err := s.quiet(ctx, "", "sandbox", "ls")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 4 && f[0] == "neighbour" {
			return f[4], nil
		}
	}
	return "", fmt.Errorf("the second sandbox is not listed: %s", out)
}

func remembered(ctx context.Context, s *stage) error {
	if _, _, err := s.show(ctx, "echo \"- The user prefers tabs.\" >> /memory/memories.md"); err != nil {
		return err
	}
	for _, line := range []struct {
		args []string
		want []string
	}{
		{[]string{"memory", "store", "demo", "The user's name is Ada.", "--type", "preference"}, nil},
		{[]string{"sandbox", "stop", "demo"}, nil},
		{[]string{"sandbox", "fork", "demo", "twin"}, nil},
		{[]string{"memory", "search", "twin", "what is the name", "-n", "1"}, []string{"Ada"}},
		{[]string{"sandbox", "start", "demo"}, nil},
		{[]string{"memory", "search", "demo", "tabs or spaces", "-n", "1"}, []string{"prefers tabs"}},
		{[]string{"memory", "history", "demo", "-n", "3"}, []string{"memories.md", "memories/preference/"}},
	} {
		var typed string
		for _, arg := range line.args {
			if typed += " " + arg; strings.Contains(arg, " ") {
				typed = strings.TrimSuffix(typed, arg) + strconv.Quote(arg)
			}
		}
		fmt.Println("$ sallyport" + typed)
		out, err := s.quiet(ctx, "", line.args...)
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		for line := range strings.Lines(out) {
			fmt.Print("  " + line)
		}
		for _, w := range line.want {
			if err := want(strings.Contains(out, w), "no %q in %q", w, out); err != nil {
				return err
			}
		}
	}
	proved("a new session and a fork have it; each change is a version, with what made it")
	return nil
}

func recorded(ctx context.Context, s *stage) error {
	must := []string{"api.example.test", "unlisted.example.test", "169.254.169.254", "198.51.100.10:443", "DROP  arp", "DROP  udp"}
	since := func() string { return (time.Since(s.began) + time.Second).Truncate(time.Second).String() } // this run alone
	fmt.Printf("$ sallyport audit query --sandbox demo --since %s\n", since())
	var out string
	// Dropped packets of one kind are gathered for some seconds into one record.
	for range 20 {
		var err error
		if out, err = s.quiet(ctx, "", "audit", "query", "--sandbox", "demo", "--since", since()); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if !slices.ContainsFunc(must, func(m string) bool { return !strings.Contains(out, m) }) {
			break
		}
		time.Sleep(500 * time.Millisecond)
	}
	for line := range strings.Lines(out) {
		fmt.Print("  " + line)
	}
	for _, m := range must {
		if err := want(strings.Contains(out, m), "no record of %s", m); err != nil {
			return err
		}
	}
	if err := want(!strings.Contains(out, s.key), "the key is in the audit"); err != nil {
		return err
	}
	proved("decision and outcome, with the rule and the credential's name")
	return nil
}

func verified(ctx context.Context, s *stage) error {
	fmt.Println("$ sallyport audit verify")
	out, err := s.quiet(ctx, "", "audit", "verify")
	for line := range strings.Lines(out) {
		fmt.Print("  " + line)
	}
	if err != nil {
		return err
	}
	if err := want(strings.Contains(out, "nothing wrong"), "%q", out); err != nil {
		return err
	}
	proved("the records that a signed checkpoint covers are as they were written")
	return nil
}
