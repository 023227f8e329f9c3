// Testhost runs one test host in a network namespace of its own: the upstream
// of the demo. It needs root, writes its authority's certificate, prints
// "ready" and serves until SIGTERM or SIGINT. The host's DNS server knows the
// names of its sites.
//
//	testhost -name demo -address 198.51.100.10/24 -config host.json -ca ca.pem -key-sha256 HEX
//
// The configuration gives each name what answers there over HTTPS on port 443:
//
//	{
//	  "api.example.test":  {"kind": "api"},
//	  "git.example.test":  {"kind": "git", "root": "/srv/git", "requireKey": true},
//	  "pypi.example.test": {"kind": "files", "root": "/srv/pypi"}
//	}
//
// A folder of files with a folder for each package is an index that pip reads.
package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"sallyport/internal/durable"
	"sallyport/internal/test/testnet"
)

type site struct {
	Kind       string `json:"kind"`       // api, git or files
	Root       string `json:"root"`       // folder, of git and files
	RequireKey bool   `json:"requireKey"` // answer 401 without the key
}

func main() {
	name := flag.String("name", "testhost", "the host's `name` in messages")
	address := flag.String("address", "198.51.100.10/24", "the host's `address` with its network's length")
	config := flag.String("config", "", "`file` with the names and what answers there (JSON)")
	ca := flag.String("ca", "", "`file` to write the authority's certificate to (PEM)")
	key := flag.String("key-sha256", "", "SHA-256 of the key that sites expect, in `hex`")
	flag.Parse()
	if flag.NArg() > 0 || *config == "" || *ca == "" {
		flag.Usage()
		os.Exit(2)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	host, err := start(*name, *address, *config, *ca, *key)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testhost:", err)
		os.Exit(1)
	}
	fmt.Println("ready")
	<-stop
	if err := host.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "testhost:", err)
		os.Exit(1)
	}
}

func start(name, address, config, caFile, keyHex string) (_ *testnet.Host, err error) {
	prefix, err := netip.ParsePrefix(address)
	if err != nil {
		return nil, fmt.Errorf("-address: %w", err)
	}
	key := testnet.KeyOf(rand.Text()) // without the flag, one that nobody has
	if keyHex != "" {
		if key, err = testnet.ParseKey(keyHex); err != nil {
			return nil, fmt.Errorf("-key-sha256: %w", err)
		}
	}
	sites, err := readSites(config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", config, err)
	}
	mux, names, err := handlers(sites, key)
	if err != nil {
		return nil, err
	}
	ca, err := testnet.NewCA()
	if err != nil {
		return nil, err
	}
	host, err := testnet.Start(testnet.Config{Name: name, Address: prefix})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, host.Close())
		}
	}()
	zone := map[string][]netip.Addr{}
	for _, n := range names {
		zone[n] = []netip.Addr{prefix.Addr()}
	}
	if _, err := host.DNS(zone); err != nil {
		return nil, err
	}
	if _, err := host.HTTPS(ca, 443, mux, names...); err != nil {
		return nil, err
	}
	return host, durable.WriteFile(caFile, ca.PEM(), 0o644)
}

func readSites(path string) (map[string]site, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var sites map[string]site
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&sites); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("something follows the JSON object")
	}
	if len(sites) == 0 {
		return nil, errors.New("no site")
	}
	return sites, nil
}

// handlers routes by the name in the Host header.
func handlers(sites map[string]site, key testnet.Key) (http.Handler, []string, error) {
	mux := http.NewServeMux()
	var names []string
	for name, s := range sites {
		var h http.Handler
		switch s.Kind {
		case "api":
			h = testnet.API(key)
		case "git":
			var err error
			if h, err = testnet.Git(s.Root); err != nil {
				return nil, nil, err
			}
		case "files":
			h = http.FileServer(http.Dir(s.Root))
		default:
			return nil, nil, fmt.Errorf("site %s: kind %q: want api, git or files", name, s.Kind)
		}
		if s.Kind != "api" {
			if info, err := os.Stat(s.Root); err != nil || !info.IsDir() {
				return nil, nil, fmt.Errorf("site %s: root %q is not a folder", name, s.Root)
			}
		}
		if s.RequireKey {
			h = testnet.RequireKey(key, h)
		}
		mux.Handle(name+"/", h)
		names = append(names, name)
	}
	return mux, names, nil
}
