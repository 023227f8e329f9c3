// Agent is a small complete agent: a model with a shell in a sandbox, and a memory.
//
// The program is outside the sandbox. It reaches the sandbox and its memory by the
// daemon's API, and the model by the daemon's explicit proxy, which injects the API key:
// neither the program nor the sandbox has it. README.md says how to run it.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"time"

	"sallyport/sandbox/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	a := agent{began: time.Now().Truncate(time.Millisecond)}
	flag.StringVar(&a.sandbox, "sandbox", "agent", "`name` of the sandbox, which is made if there is none")
	flag.StringVar(&a.session, "session", a.began.UTC().Format("20060102T150405Z"), "`id` of this conversation in the history")
	flag.StringVar(&a.model.url, "url", "https://api.openai.com/v1/chat/completions", "`URL` of the model's API")
	flag.BoolVar(&a.model.anthropic, "anthropic", false, "the API has Anthropic's form, as https://api.anthropic.com/v1/messages")
	flag.StringVar(&a.model.name, "model", "", "the model's `name`; needed")
	socket := flag.String("socket", "/run/sallyport/sallyport.sock", "the daemon's `socket`")
	proxy := flag.String("proxy", "http://127.0.0.1:3128", "`URL` of the daemon's explicit proxy")
	user := flag.String("client", "agent", "`name` of this program among the proxy's clients")
	token := flag.String("token", "token", "`file` with that client's token")
	ca := flag.String("ca", "agent.pem", "`file` with the certificate of `sallyport ca --client`")
	flag.Parse()
	if flag.NArg() != 1 || a.model.name == "" {
		flag.Usage()
		os.Exit(2)
	}
	a.c = client.Unix(*socket)
	defer a.c.Close()
	var err error
	if a.model.c, err = through(*proxy, *user, *token, *ca); err == nil {
		var answer string
		if answer, err = a.do(ctx, flag.Arg(0)); err == nil {
			fmt.Println(answer)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

// through returns an HTTP client whose requests go through the explicit proxy.
func through(proxy, user, tokenFile, caFile string) (*http.Client, error) {
	u, err := url.Parse(proxy)
	if err != nil {
		return nil, err
	}
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		return nil, err
	}
	root, err := os.ReadFile(caFile)
	if err != nil {
		return nil, err
	}
	u.User = url.UserPassword(user, strings.TrimSpace(string(token)))
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(root) {
		return nil, fmt.Errorf("%s has no certificate", caFile)
	}
	return &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyURL(u), TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	}}, nil
}
