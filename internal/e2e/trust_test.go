package e2e

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

// step is a command inside and what it prints.
type step struct{ name, shell, want string }

const refresh = "update-ca-certificates --fresh >/tmp/log 2>&1 || { cat /tmp/log >&2; exit 1; }; "

// reinstall is what apt-get does when it installs a package anew.
const reinstall = "dpkg -i --force-all /root/ca-certificates.deb >/tmp/log 2>&1 || { cat /tmp/log >&2; exit 1; }; "

// forget has the next update take the first roots of the image only: scripts run a dozen
// programs for each, which takes half a minute in a sandbox for all.
const forget = `sed -i '16,$d' /etc/ca-certificates.conf; `

// fewRoots makes of Debian's ca-certificates package one with the first four roots.
const fewRoots = `set -e
	cat >/tmp/whole.deb
	dpkg-deb -R /tmp/whole.deb /tmp/p
	cd /tmp/p/usr/share/ca-certificates/mozilla
	ls | tail -n +5 | xargs rm
	sed -i '/mozilla/d' /tmp/p/DEBIAN/md5sums
	dpkg-deb -b /tmp/p /tmp/few.deb >/dev/null
	cat /tmp/few.deb`

// Whatever an image has for roots, clients trust the gateway with their
// defaults and no environment, keep trusting what the image did, and go on when
// the image's own tools make the bundle anew.
func TestTrustInImages(t *testing.T) {
	r := newRig(t, "")
	r.configure(baseConfig, strings.Replace(ruleConfig, "egress:", `- destination: pypi.example.test
  authRef: key
  upstream: {addresses: [198.51.100.10], roots: ca.pem, resolver: "198.51.100.10:53"}
egress:
- destination: private.example.test
  ports: [8443]
  action: tunnel
  upstream: {addresses: [198.51.100.10], resolver: "198.51.100.10:53"}`, 1))
	root := filepath.Join(r.dir, "git")
	seedRepository(t, root)
	repositories, err := testnet.Git(root)
	must.OK(t, err)
	r.serveSites(hostMux{
		"git.example.test":     testnet.RequireKey(testnet.KeyOf(r.key), repositories),
		"pypi.example.test":    testnet.RequireKey(testnet.KeyOf(r.key), packageIndex(t)),
		"private.example.test": http.NotFoundHandler(),
	})
	private, err := testnet.NewCA()
	must.OK(t, err)
	site := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "private site") })
	if _, err := r.host.HTTPS(private, 8443, site, "private.example.test"); err != nil {
		t.Fatal(err)
	}
	r.up()
	r.setKey()
	r.makePackage(r.image())

	saw := `"saw_key":true,"key_sha256":"` + r.keyID() + `"`
	const url = "https://api.example.test/"
	curl := step{"curl", "env -i /usr/bin/curl -sS " + url, saw}
	golang := step{"go", "env -i /usr/local/bin/client " + url, saw}
	python := step{"python", `env -i /usr/bin/python3 -c 'import urllib.request as u; print(u.urlopen("` + url + `").read().decode())'`, saw}
	requests := step{"requests", `env -i /usr/bin/python3 -c 'from pip._vendor import requests; print(requests.get("` + url + `").text)'`, saw}
	pip := step{"pip", "rm -rf /tmp/p && env -i /usr/bin/python3 -m pip download -q --no-deps --no-cache-dir -d /tmp/p -i https://pypi.example.test/simple demo && ls /tmp/p", "demo-1.0-py3-none-any.whl"}
	git := step{"git", "env -i /usr/bin/git ls-remote https://git.example.test/repo.git", "refs/heads/main"}
	corp := step{"the image's own root", "env -i /usr/bin/curl -sS https://private.example.test:8443/", "private site"}
	after := func(what string, first string, steps ...step) (all []step) {
		for _, s := range steps {
			all = append(all, step{s.name + " after " + what, first + s.shell, s.want})
			first = ""
		}
		return all
	}
	many := func(groups ...[]step) (all []step) {
		for _, g := range groups {
			all = append(all, g...)
		}
		return all
	}
	base := r.image()
	clients := []step{curl, golang, python, requests, pip, git}

	for _, c := range []struct {
		name  string
		make  string // run in the base image, with the private root on standard input
		steps []step
	}{
		{"Debian", "", many(
			clients,
			[]step{{"a root that it does not have", "curl -sS https://private.example.test:8443/; echo exit $?", "exit 60"}},
			after("an update", forget+refresh, curl, golang, python, requests),
			after("a new installation", reinstall, curl, golang, python, requests),
		)},
		{"Red Hat", `set -e
			mkdir -p /etc/pki/ca-trust/extracted/pem /etc/pki/ca-trust/source/anchors /etc/pki/tls/certs
			cp /etc/ssl/certs/ca-certificates.crt /etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem
			ln -s /etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem /etc/pki/tls/certs/ca-bundle.crt
			ln -s /etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem /etc/pki/tls/cert.pem
			echo 'Red Hat Enterprise Linux release 9' >/etc/redhat-release
			rm -rf /etc/ssl /etc/ca-certificates* /usr/share/ca-certificates /usr/local/share/ca-certificates /usr/sbin/update-ca-certificates`,
			many(
				[]step{{"curl with Red Hat's bundle", "env -i /usr/bin/curl -sS --cacert /etc/pki/tls/certs/ca-bundle.crt " + url, saw}},
				clients,
				after("Debian's paths are gone", "rm -rf /etc/ssl; ", golang),
				[]step{{"curl with Red Hat's bundle alone", "env -i /usr/bin/curl -sS --cacert /etc/pki/tls/cert.pem " + url, saw}},
				[]step{{"its own roots", "grep -c BEGIN /etc/pki/tls/certs/ca-bundle.crt | sed 's/^1..$/many/'", "many"}},
				[]step{{"the anchor for update-ca-trust", "grep -l BEGIN /etc/pki/ca-trust/source/anchors/*", "sallyport"}},
			)},
		{"no bundle", `dpkg -P --force-all ca-certificates >/dev/null 2>&1
			rm -rf /etc/ssl /etc/ca-certificates* /usr/share/ca-certificates /usr/local/share/ca-certificates
			test ! -e /usr/sbin/update-ca-certificates`,
			many(clients, after("an installation", reinstall, curl, golang, python, requests))},
		{"a private root", forget + `cat >/usr/local/share/ca-certificates/corp.crt && update-ca-certificates`,
			many(append(clients, corp), after("a new installation", reinstall, curl, corp, golang))},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer r.within(t)()
			image := base
			name := strings.ReplaceAll(strings.ToLower(c.name), " ", "-")
			if c.make != "" {
				image = r.derive(base, "sallyport/"+name+":1", c.make, private.PEM())
			}
			r.play(t, name, image, c.steps)
		})
	}
}

// Runtimes that bring roots of their own.
func TestTrustInRuntimes(t *testing.T) {
	r := newRig(t, "")
	archive := testImage(t, "runtimes")
	r.set = "trust"
	r.serveSites(nil)
	r.up()
	r.setKey()
	const image = "sallyport/runtimes:1"
	r.imported(archive, image)
	r.makePackage(image)

	saw := `"saw_key":true,"key_sha256":"` + r.keyID() + `"`
	const url = "https://api.example.test/"
	const fetch = `import java.io.*; import java.net.*;
class Fetch { public static void main(String[] a) throws Exception {
	((HttpURLConnection) new URI(a[0]).toURL().openConnection()).getInputStream().transferTo(System.out); } }`
	get := `require("https").get("` + url + `", r => r.pipe(process.stdout)).on("error", e => { console.error(e); process.exit(1) })`
	java := step{"java", "java -cp /root Fetch " + url, saw}
	bare := step{"java without environment", "env -i /usr/bin/java -cp /root Fetch " + url, saw}
	steps := []step{
		{"node", "node -e '" + get + "'", saw},
		{"node's fetch", `node -e 'fetch("` + url + `").then(r => r.text()).then(console.log)'`, saw},
		{"node without environment", "env -i /usr/bin/node -e '" + get + "'", saw},
		{"javac", "cat >/root/Fetch.java <<'END'\n" + fetch + "\nEND\njavac -d /root /root/Fetch.java && echo made", "made"},
		java, bare,
		{"java's own roots", "keytool -list -cacerts -storepass changeit 2>/dev/null | grep -c trustedCertEntry | sed 's/^1..$/many/'", "many"},
		{"java after an update", forget + refresh + java.shell, saw},
		{"java after a new installation", reinstall + bare.shell, saw},
		{"node after a new installation", "node -e '" + get + "'", saw},
		{"java's own roots after a new installation", "keytool -list -cacerts -storepass changeit 2>/dev/null | grep -c trustedCertEntry | sed 's/^[5-9]$\\|^[1-9][0-9]*$/some/'", "some"},
	}
	r.play(t, "runtimes", image, steps)
}

// Browsers trust roots of their own: a whole Chromium, whose user may be any, and
// the headless shell that Playwright and Puppeteer start, as root, as a user of
// the image and as one that is added later.
func TestTrustInBrowsers(t *testing.T) {
	r := newRig(t, "")
	archive := testImage(t, "browsers")
	r.set = "trust"
	r.serveSites(nil)
	r.up()
	r.setKey()
	const plain, image = "sallyport/browsers:1", "sallyport/derived:1"
	r.imported(archive, plain)
	r.derive(plain, image, "useradd -m agent", nil)

	saw := `"saw_key":true,"key_sha256":"` + r.keyID() + `"`
	const page = " --no-sandbox --disable-gpu --disable-dev-shm-usage --dump-dom https://api.example.test/"
	const shell = "/usr/bin/chromium-headless-shell" + page
	r.play(t, "browsers", image, []step{
		{"headless shell", shell, saw},
		{"headless shell of a user", "su - agent -c '" + shell + "'", saw},
		{"headless shell of a new user", "useradd -m later && su - later -c '" + shell + "'", saw},
		{"Chromium", "/usr/bin/chromium --headless" + page, saw},
		{"Chromium with a home of its own", "mkdir /tmp/home && env -i HOME=/tmp/home /usr/bin/chromium --headless" + page, saw},
	})
}

// play runs steps in a new sandbox.
func (r *rig) play(t *testing.T, name, image string, steps []step) {
	t.Helper()
	if res := r.sallyport("run", "--image", image, name, "--", "true"); res.code != 0 {
		t.Fatalf("%s\n%s", res, r.logged())
	}
	defer func() {
		if res := r.sallyport("sandbox", "rm", name); res.code != 0 {
			t.Errorf("removing %s: %s", name, res)
		}
	}()
	client, err := os.ReadFile(filepath.Join(tools.Dir, "client"))
	must.OK(t, err)
	for file, content := range map[string][]byte{"/usr/local/bin/client": client, "/root/ca-certificates.deb": r.pkg} {
		if content == nil {
			continue
		}
		if res := r.feed(string(content), "run", name, "--", "sh", "-c", "mkdir -p "+path.Dir(file)+" && cat > "+file+" && chmod +x "+file); res.code != 0 {
			t.Fatal(res)
		}
	}
	for _, s := range steps {
		t.Run(s.name, func(t *testing.T) {
			defer r.within(t)()
			if res := r.inside(name, s.shell); res.code != 0 || !strings.Contains(res.stdout, s.want) {
				t.Errorf("got %s\nwant exit 0 and %q", res, s.want)
			}
		})
	}
}

// imported has the engine import an archive, unless it began with the image.
func (r *rig) imported(archive, image string) {
	r.t.Helper()
	if r.docker("image", "inspect", image).Run() != nil {
		r.must(r.docker("import", archive, image))
	}
}

// derive makes an image from another by a shell script.
func (r *rig) derive(base, name, script string, stdin []byte) string {
	r.t.Helper()
	made := "derive-" + path.Base(strings.TrimSuffix(name, ":1"))
	c := r.docker("run", "-i", "--name", made, "--network", "none", base, "sh", "-c", script)
	c.Stdin = bytes.NewReader(stdin)
	r.must(c)
	r.must(r.docker("commit", made, name))
	r.must(r.docker("rm", made))
	return name
}

// testImage is an image that setup.sh makes for the tests: runtimes has node and
// Java, browsers has Chromium.
func testImage(t testing.TB, name string) string {
	t.Helper()
	file, err := filepath.EvalSymlinks("../../bin/" + name + ".tar")
	if err != nil {
		must.Lack(t, "bin/%s.tar is missing: run make test, which makes it", name)
	}
	return file
}

// makePackage makes the package that reinstall installs.
func (r *rig) makePackage(image string) {
	r.t.Helper()
	c := r.docker("run", "-i", "--rm", "--network", "none", image, "sh", "-c", fewRoots)
	c.Stdin = bytes.NewReader(packageFile(r.t))
	out, err := c.Output()
	if err != nil {
		r.t.Fatalf("making a package with few roots: %v", err)
	}
	r.pkg = out
}

// packageFile is Debian's ca-certificates package, which lies in the runtimes
// image.
func packageFile(t testing.TB) []byte {
	t.Helper()
	f, err := os.Open(testImage(t, "runtimes"))
	must.OK(t, err)
	defer f.Close()
	for archive := tar.NewReader(f); ; {
		head, err := archive.Next()
		if err != nil {
			t.Fatalf("no package in the runtimes image: %v", err)
		}
		if ok, _ := path.Match("root/ca-certificates_*.deb", path.Clean(head.Name)); ok {
			content, err := io.ReadAll(archive)
			must.OK(t, err)
			return content
		}
	}
}

// packageIndex serves one Python package, as PEP 503 and PEP 427 say.
func packageIndex(t *testing.T) http.Handler {
	t.Helper()
	var wheel bytes.Buffer
	z := zip.NewWriter(&wheel)
	for name, text := range map[string]string{
		"demo.py":                     "",
		"demo-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
		"demo-1.0.dist-info/WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"demo-1.0.dist-info/RECORD":   "",
	} {
		w, err := z.Create(name)
		if err == nil {
			_, err = io.WriteString(w, text)
		}
		must.OK(t, err)
	}
	must.OK(t, z.Close())
	const file = "demo-1.0-py3-none-any.whl"
	mux := http.NewServeMux()
	mux.HandleFunc("/simple/demo/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, "<!DOCTYPE html><a href=\"/files/%s\">%s</a>", file, file)
	})
	mux.HandleFunc("/files/"+file, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(wheel.Bytes()) })
	return mux
}
