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
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"sallyport/internal/test/database"
	"sallyport/internal/test/must"
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
- {name: login, exchange: {oauth2: {tokenURL: "%[2]s", clientID: agent, clientAuth: post, grant: refreshToken, roots: endpoint.pem}}}
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
	case "header":
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

// A credential of any kind, from any source and through any exchange, reaches its
// upstream and stays out of all that a sandbox has and all that the host keeps.
func TestCredentialLeaks(t *testing.T) {
	r := newRig(t, "")
	names := []string{"bearer", "header", "basic", "query", "cookie", "body", "client", "client's token", "login", "login's token", "login's next", "signed", "hmac", "aws", "db", "cache"}
	values := map[string]string{}
	for _, name := range names {
		values[name] = "sk+" + rand.Text() + "/%=&~"
	}
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
	vault := startVault(t, values["cookie"])

	// The token endpoint.
	endpoint := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		answer := map[string]any{"token_type": "Bearer", "expires_in": 3600}
		switch {
		case q.FormValue("client_secret") == values["client"]:
			answer["access_token"] = values["client's token"]
		case q.FormValue("refresh_token") == values["login"]:
			answer["access_token"], answer["refresh_token"] = values["login's token"], values["login's next"]
		default:
			http.Error(w, `{"error":"invalid_grant"}`, http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer endpoint.Close()
	r.write("endpoint.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: endpoint.Certificate().Raw})))

	// The upstream: an echo that asks for a client certificate, and real servers.
	var mu sync.Mutex
	saw := map[string]string{}
	mux := http.NewServeMux()
	for name, echo := range echoes {
		mux.HandleFunc("/"+strings.ReplaceAll(name, " ", "-"), func(w http.ResponseWriter, q *http.Request) {
			host, _, _ := strings.Cut(q.Host, ".")
			value := carried(q)
			mu.Lock()
			saw[host] = value
			mu.Unlock()
			if host == "certificate" {
				value = "a certificate"
			}
			echo(w, value)
		})
	}
	hosts := []string{"bearer", "header", "basic", "query", "cookie", "body", "certificate", "client", "login", "signed", "hmac", "aws"}
	zone, sites := map[string][]netip.Addr{}, []string{}
	for _, host := range append(hosts, "git", "db", "cache") {
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
	line, err := ssh.NewPublicKey(login.Public())
	must.OK(t, err)
	r.write("authorized", string(ssh.MarshalAuthorizedKey(line)))
	r.write("loginkey", loginPEM) // which the server sends back
	db := database.Postgres(t, &leaf)
	db.SQL("create role agent login password '"+values["db"]+"'", "create table sent as select '"+values["db"]+"' as key", "grant select on sent to agent")
	r.relay(5432, db.Port)
	cache := database.Redis(t, &leaf, "user agent on >"+values["cache"]+" ~* &* +@all", "user default on nopass +@connection")
	must.OK(t, exec.Command("redis-cli", "-p", fmt.Sprint(cache.Port), "--tls", "--insecure", "--no-auth-warning", "--user", "agent", "--pass", values["cache"], "set", "sent", values["cache"]).Run())
	r.relay(6379, cache.Port)

	r.configure(baseConfig, fmt.Sprintf(leakRules, r.dir, endpoint.URL, hostKey)+fmt.Sprintf(
		"vault: {address: %q, roots: %q, auth: {appRole: {roleID: %q, secretIDFile: %q}}}\n", vault.Address, vault.CAFile, vault.RoleID, filepath.Join(vault.dir, "secret-id")))
	r.up()
	accessKey := "AKIA" + rand.Text()[:16]
	if res := r.feed(accessKey+"\n"+values["aws"]+"\n", "secret", "set", "aws", "--field", "accessKeyId", "--field", "secretAccessKey"); res.code != 0 {
		t.Fatal(res)
	}
	for name, field := range map[string]string{"bearer": "token", "body": "token", "client": "clientSecret", "login": "refreshToken", "signed": "key", "hmac": "key", "git": "privateKey", "db": "token", "cache": "token"} {
		value := values[name]
		if name == "git" {
			value = loginPEM
		}
		if res := r.feed(value+"\n", "secret", "set", name, "--field", field); res.code != 0 {
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
		case "aws":
			shell += "--aws-sigv4 aws:amz:eu-central-1:s3 --user none:none "
		}
		for _, name := range leakEchoes {
			shell += "https://" + host + ".example.test/" + strings.ReplaceAll(name, " ", "-") + " "
		}
		if got := run(shell); strings.Count(got, " 200") < len(leakEchoes) {
			t.Errorf("%s: got %s", host, got)
		}
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
	for _, host := range hosts {
		want := values[host]
		switch host {
		case "client", "login":
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

	// What stays: on the sandbox's disk, in its memory, and in the audit log.
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
	r.said(t, h, "/hexadecimal", absent)
}
