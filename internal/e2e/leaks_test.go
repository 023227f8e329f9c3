package e2e

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"sallyport/internal/test/database"
	"sallyport/internal/test/must"
	"sallyport/internal/test/vaultcore"
)

// leakRules give one credential of each kind, from each source and exchange. %[1]s is the
// rig's folder, %[2]s the address of the token endpoint, %[3]s the host key of sshd.
const leakRules = `
egressAuth:
- {destination: bearer.example.test, authRef: bearer, upstream: &up {addresses: [198.51.100.10], roots: ca.pem, resolver: "198.51.100.10:53"}}
- {destination: header.example.test, authRef: header, inject: {header: {name: X-Api-Key, value: "{{ .token }}"}}, upstream: *up}
- {destination: basic.example.test, authRef: basic, inject: {basic: {username: agent, password: "{{ .token }}"}}, upstream: *up}
- {destination: query.example.test, authRef: query, inject: {query: {name: key, value: "{{ .token }}"}}, upstream: *up}
- {destination: cookie.example.test, authRef: cookie, inject: {cookie: {name: session, value: "{{ .token }}"}}, upstream: *up}
- {destination: body.example.test, authRef: body, inject: {placeholder: [body]}, upstream: *up}
- {destination: certificate.example.test, authRef: certificate, inject: {clientCertificate: {}}, upstream: *up}
- {destination: client.example.test, authRef: client, upstream: *up}
- {destination: login.example.test, authRef: login, upstream: *up}
- {destination: token.example.test, methods: [POST], paths: [/oauth/token], authRef: login, inject: {tokenEndpoint: true}, upstream: *up}
- {destination: placed.example.test, authRef: placed, inject: {placeholder: [header, query, path, body]}, upstream: *up}
- {destination: rpc.example.test, authRef: rpc, inject: {header: {name: x-api-key, value: "{{ .token }}"}}, upstream: *up}
- {destination: socket.example.test, authRef: socket, inject: {placeholder: [body]}, upstream: *up}
- {destination: github.example.test, authRef: github, upstream: *up}
- {destination: gcp.example.test, authRef: gcp, upstream: *up}
- {destination: azure.example.test, authRef: azure, upstream: *up}
- {destination: role.example.test, authRef: role, inject: {aws: {service: s3, region: eu-central-1}}, upstream: *up}
- {destination: signed.example.test, authRef: signed, upstream: *up}
- {destination: hmac.example.test, authRef: hmac, inject: {hmac: {key: "{{ .key }}", sign: "{method}\n{path}", headers: {X-Signature: "{signature}"}}}, upstream: *up}
- {destination: aws.example.test, authRef: aws, inject: {aws: {service: s3, region: eu-central-1}}, upstream: *up}
- {destination: git.example.test, authRef: git, methods: [exec], inject: {ssh: {user: root, hostKeys: ["%[3]s"]}}, upstream: *up}
- {destination: db.example.test, authRef: db, paths: [/postgres], inject: {postgres: {username: agent, password: "{{ .token }}"}}, upstream: *up}
- {destination: cache.example.test, authRef: cache, inject: {redis: {username: agent, password: "{{ .token }}"}}, upstream: *up}
credentials:
- {name: bearer}
- {name: header, source: {env: LEAKS_HEADER}}
- {name: basic, source: {file: %[1]s/from/basic}}
- {name: query, source: {command: [cat, %[1]s/from/query]}}
- {name: cookie, source: {vault: {path: secret/data/openai, field: token}}}
- {name: body, placeholder: {env: BODY_KEY}}
- {name: certificate, source: {file: %[1]s/from/certificate}}
- {name: client, exchange: {oauth2: {tokenURL: "%[2]s", clientID: agent, clientAuth: post, roots: endpoint.pem}}}
- {name: login, exchange: {oauth2: {tokenURL: "%[2]s", clientID: agent, clientAuth: post, grant: refreshToken, roots: endpoint.pem}}, placeholder: {env: LOGIN_TOKEN}}
- {name: placed, placeholder: {env: PLACED_KEY, like: sk-placed-}}
- {name: rpc}
- {name: socket, placeholder: {env: SOCKET_KEY}}
- {name: github, exchange: {githubApp: {appID: "1", installationID: "2", url: "%[2]s/github", roots: endpoint.pem}}}
- {name: gcp, source: {file: %[1]s/from/gcp}, exchange: {gcp: {scopes: [read], tokenURL: "%[2]s/gcp", roots: endpoint.pem}}}
- {name: azure, exchange: {azure: {tenant: t, clientID: agent, scopes: ["https://graph.example.test/.default"], authority: "%[2]s/azure", roots: endpoint.pem}}}
- {name: role, exchange: {aws: {roleARN: "arn:aws:iam::123456789012:role/agent", region: eu-central-1, url: "%[2]s/aws", roots: endpoint.pem}}}
- {name: signed, exchange: {jwt: {algorithm: HS256, issuer: agents}}}
- {name: hmac}
- {name: aws}
- {name: git}
- {name: db}
- {name: cache}
`

// leakEchoes are those of echoes that each host sends the sandbox.
var leakEchoes = []string{"body", "header", "json", "base64", "hexadecimal", "query", "packed unasked"}

// keeping is a process with a canary in its memory alone.
const keeping = `
import time
kept = bytes(b ^ 0x5a for b in bytes.fromhex("%x"))
open("/memory/kept", "w").close()
while True: time.sleep(60)
`

// carried is what a request to the upstream has in the place of its host's credential.
func carried(q *http.Request) (value string) {
	body, _ := io.ReadAll(q.Body)
	switch host, _, _ := strings.Cut(q.Host, "."); host {
	case "header", "rpc":
		return q.Header.Get("X-Api-Key")
	case "hmac":
		return q.Header.Get("X-Signature")
	case "basic":
		_, value, _ = q.BasicAuth()
	case "query":
		return q.URL.Query().Get("key")
	case "cookie":
		if c, err := q.Cookie("session"); err == nil {
			return c.Value
		}
	case "body":
		return string(body)
	case "placed":
		return placed(q, string(body))
	case "role":
		return q.Header.Get("X-Amz-Security-Token")
	case "certificate":
		if len(q.TLS.PeerCertificates) == 1 {
			return string(q.TLS.PeerCertificates[0].RawSubjectPublicKeyInfo)
		}
	default:
		return strings.TrimPrefix(q.Header.Get("Authorization"), "Bearer ")
	}
	return value
}

// plantKey makes a private key as PEM, and returns the bytes that are the secret of it.
func plantKey(t *testing.T) (ed25519.PrivateKey, string, string) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	must.OK(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	must.OK(t, err)
	return key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), string(key.Seed())
}

// certifySSH has an authority certify a key for root, and returns the certificate's line and
// the authority's.
func certifySSH(t *testing.T, key ed25519.PrivateKey) (certificate, authority string) {
	t.Helper()
	_, ca, err := ed25519.GenerateKey(rand.Reader)
	must.OK(t, err)
	signer, err := ssh.NewSignerFromKey(ca)
	must.OK(t, err)
	public, err := ssh.NewPublicKey(key.Public())
	must.OK(t, err)
	c := &ssh.Certificate{Key: public, CertType: ssh.UserCert, ValidPrincipals: []string{"root"}, ValidBefore: ssh.CertTimeInfinity, Permissions: ssh.Permissions{Extensions: map[string]string{"permit-pty": ""}}}
	must.OK(t, c.SignCert(rand.Reader, signer))
	return string(ssh.MarshalAuthorizedKey(c)), string(ssh.MarshalAuthorizedKey(signer.PublicKey()))
}

// A credential of any kind, from any source and through any exchange, reaches its
// upstream and stays out of all that a sandbox has and all that the host keeps.
func TestCredentialLeaks(t *testing.T) {
	r := newRig(t, "")
	names := []string{"bearer", "header", "basic", "query", "cookie", "body", "client", "client's token", "login", "login's token", "login's next", "signed", "hmac", "aws", "db", "cache", "placed", "rpc", "socket",
		"github's token", "gcp's token", "azure", "azure's token", "role", "role's secret", "role's session"}
	values := map[string]string{}
	for _, name := range names {
		values[name] = "sk+" + rand.Text() + "/%=&~"
	}
	values["placed"] = "sk+" + rand.Text() + "=&~" // which a path can hold
	canaries := map[string]string{"on disk": "canary-" + rand.Text(), "kept": "canary-" + rand.Text(), "in a path": "canary-" + rand.Text()}

	// The sources.
	must.OK(t, os.MkdirAll(filepath.Join(r.dir, "from/certificate"), 0o700))
	t.Setenv("LEAKS_HEADER", values["header"])
	r.write("from/basic", values["basic"])
	r.write("from/query", values["query"])
	shown, shownPEM, seed := plantKey(t)
	values["certificate"] = seed
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, shown.Public(), shown)
	must.OK(t, err)
	public, err := x509.MarshalPKIXPublicKey(shown.Public())
	must.OK(t, err)
	r.write("from/certificate/certificate", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	r.write("from/certificate/key", shownPEM)
	vault := vaultcore.Start(t, map[string]any{"token": values["cookie"]})

	appKey, line := plantRSA(t)
	values["github"] = line
	account, line := plantRSA(t)
	values["gcp"] = line
	text, err := json.Marshal(map[string]string{"type": "service_account", "client_email": "agent@example.test", "private_key": account})
	must.OK(t, err)
	r.write("from/gcp", string(text))

	// The token endpoints.
	endpoint := httptest.NewTLSServer(issuers(values))
	defer endpoint.Close()
	r.write("endpoint.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: endpoint.Certificate().Raw})))

	// The upstream: an echo that asks for a client certificate, and real servers.
	var mu sync.Mutex
	saw := map[string]string{}
	mux := http.NewServeMux()
	for name, echo := range echoes {
		handler := func(w http.ResponseWriter, q *http.Request) {
			host, _, _ := strings.Cut(q.Host, ".")
			value := carried(q)
			mu.Lock()
			saw[host] = value
			mu.Unlock()
			if host == "certificate" {
				value = "a certificate"
			}
			echo(w, value)
		}
		mux.HandleFunc("/"+strings.ReplaceAll(name, " ", "-"), handler)
		mux.HandleFunc("/"+strings.ReplaceAll(name, " ", "-")+"/", handler) // a placeholder follows
	}
	note := func(host, value string) {
		mu.Lock()
		defer mu.Unlock()
		saw[host] = value
	}
	mux.HandleFunc("/leak.Echo/Say", func(w http.ResponseWriter, q *http.Request) {
		value := carried(q)
		note("rpc", value)
		sayRPC(w, value)
	})
	mux.HandleFunc("/socket", func(w http.ResponseWriter, q *http.Request) { note("socket", saySocket(w, q)) })
	hosts := []string{"bearer", "header", "basic", "query", "cookie", "body", "certificate", "client", "login", "signed", "hmac", "aws", "placed", "github", "gcp", "azure", "role"}
	zone, sites := map[string][]netip.Addr{}, []string{}
	for _, host := range append(hosts, "git", "db", "cache", "rpc", "socket", "token") {
		sites = append(sites, host+".example.test")
		zone[host+".example.test"] = []netip.Addr{netip.MustParseAddr(upstreamAddress)}
	}
	_, err = r.host.DNS(zone)
	must.OK(t, err)
	leaf, err := r.ca.Leaf(sites...)
	must.OK(t, err)
	ln, err := r.host.Listen(443)
	must.OK(t, err)
	upstream := &http.Server{Handler: mux, TLSConfig: &tls.Config{Certificates: []tls.Certificate{leaf}, ClientAuth: tls.RequestClientCert}, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = upstream.ServeTLS(ln, "", "") }()
	defer upstream.Close()

	login, loginPEM, seed := plantKey(t)
	values["git"] = seed
	_, hostKey := r.sshServer(r.dir)
	signedKey, authority := certifySSH(t, login)
	r.write("authorized", "cert-authority "+authority) // no key alone
	r.write("loginkey", loginPEM)                      // which the server sends back
	db := database.Postgres(t, &leaf)
	db.SQL("create role agent login password '"+values["db"]+"'", "create table sent as select '"+values["db"]+"' as key", "grant select on sent to agent")
	r.relay(5432, db.Port)
	cache := database.Redis(t, &leaf, "user agent on >"+values["cache"]+" ~* &* +@all", "user default on nopass +@connection")
	must.OK(t, exec.Command("redis-cli", "-p", fmt.Sprint(cache.Port), "--tls", "--insecure", "--no-auth-warning", "--user", "agent", "--pass", values["cache"], "set", "sent", values["cache"]).Run())
	r.relay(6379, cache.Port)

	r.configure(baseConfig, fmt.Sprintf(leakRules, r.dir, endpoint.URL, hostKey)+vaultLogin(vault))
	r.up()
	accessKey := "AKIA" + rand.Text()[:16]
	if res := r.feed(accessKey+"\n"+values["aws"]+"\n", "secret", "set", "aws", "--field", "accessKeyId", "--field", "secretAccessKey"); res.code != 0 {
		t.Fatal(res)
	}
	r.write("sshkey", loginPEM)
	r.write("sshcertificate", signedKey)
	r.write("appkey", appKey)
	r.ok("secret", "set", "git", "--file", "privateKey="+filepath.Join(r.dir, "sshkey"), "--file", "certificate="+filepath.Join(r.dir, "sshcertificate"))
	r.ok("secret", "set", "github", "--file", "privateKey="+filepath.Join(r.dir, "appkey"))
	if res := r.feed("AKIA"+rand.Text()[:16]+"\n"+values["role"]+"\n", "secret", "set", "role", "--field", "accessKeyId", "--field", "secretAccessKey"); res.code != 0 {
		t.Fatal(res)
	}
	for name, field := range map[string]string{"placed": "token", "rpc": "token", "socket": "token", "azure": "clientSecret", "bearer": "token", "body": "token", "client": "clientSecret", "login": "refreshToken", "signed": "key", "hmac": "key", "db": "token", "cache": "token"} {
		if res := r.feed(values[name]+"\n", "secret", "set", name, "--field", field); res.code != 0 {
			t.Fatalf("%s: %s", name, res)
		}
	}

	// Each credential is used from inside.
	r.ok("run", "agent", "--", "true")
	programs, err := filepath.Glob("/usr/lib/postgresql/*/bin/psql")
	must.OK(t, err)
	dir := t.TempDir()
	clients(t, dir, slices.Max(programs), "/usr/bin/redis-cli", "/usr/bin/ssh")
	r.ok("sandbox", "cp", "-r", dir, "agent:/root/clients")
	var printed strings.Builder
	run := func(shell string) string {
		t.Helper()
		res := r.inside("agent", shell)
		printed.WriteString(res.stdout + "\n" + res.stderr + "\n")
		if res.code != 0 {
			t.Fatalf("%s: %s\n%s", shell, res, r.logged())
		}
		return res.stdout
	}
	for _, host := range hosts {
		shell := "curl -sS -i --compressed -m 30 "
		switch host {
		case "body":
			shell += `-H 'Content-Type: text/plain' -d "$BODY_KEY" `
		case "placed":
			shell += `-H "X-Api-Key: $PLACED_KEY" -d "token=$PLACED_KEY" `
		case "aws", "role":
			shell += "--aws-sigv4 aws:amz:eu-central-1:s3 --user none:none "
		}
		for _, name := range leakEchoes {
			shell += "https://" + host + ".example.test/" + strings.ReplaceAll(name, " ", "-")
			if host == "placed" {
				shell += `/"$PLACED_KEY"?key="$PLACED_KEY"`
			}
			shell += " "
		}
		if got := run(shell); strings.Count(got, " 200") < len(leakEchoes) {
			t.Errorf("%s: got %s", host, got)
		}
	}
	if got := run("printf '\\0\\0\\0\\0\\0' | curl -sS -i -m 30 --http2 -H 'Content-Type: application/grpc' -H 'Te: trailers' --data-binary @- -o - https://rpc.example.test/leak.Echo/Say"); !strings.Contains(got, "HTTP/2 200") || !strings.Contains(got, "****") {
		t.Errorf("gRPC: %q", got)
	}
	res := r.feed(speaking, "run", "agent", "--", "python3", "-")
	if printed.WriteString(res.stdout); !strings.Contains(res.stdout, "**** ****") {
		t.Errorf("a WebSocket: %s", res)
	}
	if got := run("curl -sS -m 30 -d 'grant_type=refresh_token&refresh_token=mine' https://token.example.test/oauth/token; echo; echo \"$LOGIN_TOKEN\""); !strings.Contains(got, `"access_token":"sallyport:login:`) {
		t.Errorf("the token endpoint: %s", got)
	}
	const programsInside = "cd /root/clients && export LD_LIBRARY_PATH=. && "
	if got := run(programsInside + "./ssh root@git.example.test 'echo it is; cat " + filepath.Join(r.dir, "loginkey") + "'"); !strings.Contains(got, "it is") {
		t.Errorf("ssh: %s", got)
	}
	if got := run(programsInside + "./psql -h db.example.test -w -X -At -c \"select current_user, key, encode(key::bytea, 'hex'), encode(key::bytea, 'base64') from sent\" postgres"); !strings.HasPrefix(got, "agent|") {
		t.Errorf("psql: %s", got)
	}
	if got := run(programsInside + "./redis-cli -h cache.example.test acl whoami && ./redis-cli -h cache.example.test get sent"); !strings.HasPrefix(got, "agent\n") {
		t.Errorf("redis-cli: %s", got)
	}
	mu.Lock()
	for _, host := range append(hosts, "rpc", "socket") {
		want := values[host]
		switch host {
		case "role":
			want = values["role's session"]
		case "client", "login", "github", "gcp", "azure":
			want = values[host+"'s token"]
		case "certificate":
			want = string(public)
		case "hmac":
			m := hmac.New(sha256.New, []byte(want))
			m.Write([]byte("GET\n/packed-unasked"))
			want = hex.EncodeToString(m.Sum(nil))
		case "aws":
			if want = saw[host]; !strings.HasPrefix(want, "AWS4-HMAC-SHA256 Credential="+accessKey+"/") {
				t.Errorf("the upstream got no signature of the key's: %q", want)
			}
		case "signed":
			want = saw[host]
			values["signed token"] = want
			if strings.Count(want, ".") != 2 {
				t.Errorf("the upstream got no JWT: %q", want)
			}
		}
		if saw[host] != want {
			t.Errorf("%s: the upstream got %q, want the credential", host, saw[host])
		}
	}
	mu.Unlock()

	// The control: what came back would have been found.
	all := maps.Clone(canaries)
	maps.Copy(all, values)
	h := newHunt(all)
	absent := slices.Sorted(maps.Keys(values))
	for _, value := range absent {
		for _, name := range leakEchoes {
			echoed := httptest.NewRecorder()
			echoes[name](echoed, values[value])
			q := h.begin()
			_ = q.read("an answer", echoed.Body)
			_ = q.read("a head", strings.NewReader(fmt.Sprint(echoed.Header())))
			if len(q.of(value)) == 0 {
				t.Errorf("%s, echoed as %s, would not be found", value, name)
			}
		}
	}

	// The places that stay: on the sandbox's disk, in its memory, and in the audit log.
	run("echo " + canaries["on disk"] + " > /root/canary; curl -sS https://bearer.example.test/" + canaries["in a path"])
	script := fmt.Sprintf(keeping, hidden(canaries["kept"]))
	if res := r.feed(script, "run", "agent", "--", "sh", "-c", "cat > /root/keep.py; setsid python3 /root/keep.py </dev/null >/dev/null 2>&1 &"); res.code != 0 {
		t.Fatal(res)
	}
	r.await("the process that stays", func() bool { _, err := os.Stat(r.memory("agent", "kept")); return err == nil })
	container := r.container("agent")
	r.must(r.docker("checkpoint", "create", "--leave-running", container, "proof"))

	search := func(place string, look func(*quarry), signs ...string) {
		t.Helper()
		q := h.begin()
		began := time.Now()
		look(q)
		t.Logf("%s: %d streams, %.1f MB in %.1f s", place, q.streams, float64(q.bytes)/1e6, time.Since(began).Seconds())
		for _, sign := range signs {
			if len(q.has(sign, "raw")) == 0 {
				t.Errorf("%s: the canary %s was not found: the search proves nothing", place, sign)
			}
		}
		for _, name := range absent {
			if found := q.of(name); len(found) > 0 {
				t.Errorf("%s: the secret of %s: %s", place, name, strings.Join(found, "\n"))
			}
		}
	}
	folder := func(path string) func(*quarry) { return func(q *quarry) { q.tree(t, path) } }
	data := filepath.Join(r.dir, "data")
	search("what the sandbox printed", func(q *quarry) { _ = q.read("output", strings.NewReader(printed.String())) })
	proofs, err := filepath.Glob(filepath.Join(data, "engine/docker/containers", container+"*", "checkpoints/proof"))
	if err != nil || len(proofs) != 1 {
		t.Fatalf("the memory checkpoint: %q, %v", proofs, err)
	}
	search("the sandbox's memory", folder(proofs[0]), "kept")
	search("gVisor's own processes", func(q *quarry) { r.sentry(t, q, container) }, "kept")
	search("the file system", func(q *quarry) { r.exported(t, q, container) }, "on disk")
	search("the sandbox's disk", folder(filepath.Join(data, "sandboxes")), "on disk")
	r.ok("sandbox", "hibernate", "agent")
	search("the audit segments", folder(filepath.Join(data, "audit")), "in a path")
	search("the data directory", folder(data), "on disk", "in a path")
	search("the run-time directory", folder(filepath.Join(r.dir, "run")))

	// The gateway's process crashes with secrets in its memory, and says where it was.
	pid := r.gatewayPID()
	must.OK(t, syscall.Kill(pid, syscall.SIGQUIT))
	r.await("another process of the gateway", func() bool { now := r.gateway(); return now.PID != 0 && now.PID != pid })
	if !strings.Contains(r.logged(), "goroutine ") {
		t.Errorf("the crash is not in the log: the search proves nothing:\n%s", r.logged())
	}
	r.said(t, h, "/hexadecimal", absent)
}
