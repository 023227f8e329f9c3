// Command vault runs the real Vault server core in memory, initialised and
// unsealed, with a KV version 2 mount at secret/ and an AppRole that may read
// it. It is for tests and for trying out the vault source: everything is lost
// when it ends, unless -data says otherwise, and it prints its root token. The engines
// database (PostgreSQL and Redis), aws, ssh and pki and the logins approle, cert, jwt and
// kubernetes are in it, to be enabled through its API.
//
//	echo '{"token":"sk-…"}' | vault -put openai -tls DIR
//
// One line of JSON on standard output says where it listens and how to log in;
// then it serves until SIGINT or SIGTERM. Everything else, such as to seal it,
// to revoke a token or to write another version, goes through Vault's own API.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// ready is what standard output gets.
type ready struct {
	Address   string `json:"address"`
	RootToken string `json:"rootToken"`
	RoleID    string `json:"roleID"`
	SecretID  string `json:"secretID"`
	UnsealKey string `json:"unsealKey"` // hexadecimal
	CAFile    string `json:"caFile,omitempty"`
}

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "loopback `address` to listen on")
	tlsDir := flag.String("tls", "", "serve TLS, with a certificate made in `directory`")
	data := flag.String("data", "", "keep everything in `directory`, with the keys to it, and go on with what is there")
	put := flag.String("put", "", "write the JSON object on standard input to secret/data/`name`")
	bound := flag.Bool("until-eof", false, "end when standard input ends, so as not to outlive who started it")
	flag.Parse()
	if err := run(*listen, *tlsDir, *data, *put, *bound); err != nil {
		fmt.Fprintln(os.Stderr, "vault:", err)
		os.Exit(1)
	}
}

func run(listen, tlsDir, data, put string, bound bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, end := context.WithCancel(ctx)
	defer end()

	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	if !l.Addr().(*net.TCPAddr).IP.IsLoopback() {
		l.Close()
		return fmt.Errorf("%s is not a loopback address: this server prints its root token", l.Addr())
	}
	core, out, err := start(data)
	if err != nil {
		return err
	}
	out.Address = "http://" + l.Addr().String()
	if tlsDir != "" {
		out.Address = "https://" + l.Addr().String()
		if l, out.CAFile, err = secure(l, tlsDir); err != nil {
			return err
		}
	}
	if out.RoleID == "" { // a new core
		if out.RoleID, out.SecretID, err = provision(ctx, core, out.RootToken); err != nil {
			return err
		}
	}
	if put != "" {
		var fields map[string]any
		if err := json.NewDecoder(os.Stdin).Decode(&fields); err != nil {
			return fmt.Errorf("reading the secret from standard input: %w", err)
		}
		if _, err := write(ctx, core, out.RootToken, "secret/data/"+put, map[string]any{"data": fields}); err != nil {
			return err
		}
	}
	if data != "" {
		text, err := json.Marshal(out)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(data, "ready.json"), text, 0o600); err != nil {
			return err
		}
	}
	if bound {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			end()
		}()
	}

	srv := &http.Server{Handler: handler(core), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		return err
	}
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	srv.Close()
	return core.Shutdown()
}
