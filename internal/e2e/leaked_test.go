package e2e

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

// issuers answers as the token endpoints do that credentials are exchanged at, where it is
// shown what values has.
func issuers(values map[string]string) http.Handler {
	answer := func(w http.ResponseWriter, text any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(text)
	}
	token := func(name string) map[string]any {
		return map[string]any{"token_type": "Bearer", "expires_in": 3600, "access_token": values[name+"'s token"]}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /github/app/installations/2/access_tokens", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"token": values["github's token"], "expires_at": time.Now().Add(time.Hour)})
	})
	mux.HandleFunc("POST /gcp", func(w http.ResponseWriter, _ *http.Request) { answer(w, token("gcp")) })
	mux.HandleFunc("POST /azure/t/oauth2/v2.0/token", func(w http.ResponseWriter, q *http.Request) {
		if q.FormValue("client_secret") == values["azure"] {
			answer(w, token("azure"))
		}
	})
	mux.HandleFunc("POST /aws/", func(w http.ResponseWriter, _ *http.Request) {
		escaped := strings.NewReplacer("&", "&amp;")
		fmt.Fprintf(w, "<R><AssumeRoleResult><Credentials><AccessKeyId>ASIAROLEROLEROLE</AccessKeyId><SecretAccessKey>%s</SecretAccessKey><SessionToken>%s</SessionToken><Expiration>%s</Expiration></Credentials></AssumeRoleResult></R>",
			escaped.Replace(values["role's secret"]), escaped.Replace(values["role's session"]), time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		switch {
		case q.FormValue("client_secret") == values["client"]:
			answer(w, token("client"))
		case q.FormValue("refresh_token") == values["login"]:
			login := token("login")
			login["refresh_token"] = values["login's next"]
			answer(w, login)
		default:
			http.Error(w, `{"error":"invalid_grant"}`, http.StatusBadRequest)
		}
	})
	return mux
}

// plantRSA makes a private key as PEM, and returns a line from its middle besides.
func plantRSA(t *testing.T) (key, line string) {
	t.Helper()
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	must.OK(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(k)
	must.OK(t, err)
	text := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	lines := strings.Split(text, "\n")
	return text, lines[len(lines)/2]
}

// placed is what each part of a request has in the place of a placeholder.
func placed(q *http.Request, body string) string {
	form, _ := url.ParseQuery(body)
	value := q.Header.Get("X-Api-Key")
	for part, got := range map[string]string{"query": q.URL.Query().Get("key"), "path": path.Base(q.URL.Path), "form": form.Get("token")} {
		if got != value {
			return part + " has " + got
		}
	}
	return value
}

// sayRPC answers a call of gRPC with what it carried.
func sayRPC(w http.ResponseWriter, key string) {
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status, Grpc-Message, X-You-Sent")
	_, _ = w.Write(append([]byte{0, 0, 0, 0, byte(len(key))}, key...))
	w.Header().Set("Grpc-Status", "0")
	w.Header().Set("Grpc-Message", url.PathEscape(key))
	w.Header().Set("X-You-Sent", key)
}

// saySocket answers the first message of a WebSocket with what it says (RFC 6455).
func saySocket(w http.ResponseWriter, q *http.Request) (said string) {
	sum := sha1.Sum([]byte(q.Header.Get("Sec-Websocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return ""
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\n\r\n", base64.StdEncoding.EncodeToString(sum[:]))
	_ = rw.Flush()
	text := ""
	for last := false; !last; {
		head := make([]byte, 2)
		if _, err := io.ReadFull(rw, head); err != nil {
			return text
		}
		last = head[0]&0x80 != 0
		payload := make([]byte, 4+int(head[1]&0x7f)) // the mask, and a short text
		if _, err := io.ReadFull(rw, payload); err != nil {
			return text
		}
		for i := range payload[4:] {
			text += string(payload[4+i] ^ payload[i%4])
		}
	}
	text = strings.TrimPrefix(text, "say ")
	reply := fmt.Sprintf("%s %x over %0128d", text, text, 0) // of a length that two bytes say
	_, _ = rw.Write(append([]byte{0x81, 126, byte(len(reply) >> 8), byte(len(reply))}, reply...))
	_ = rw.Flush()
	return text
}

// speaking sends the placeholder in a message of a WebSocket, and prints the answer.
const speaking = `
import base64, os, socket, ssl
s = ssl.create_default_context().wrap_socket(socket.create_connection(("socket.example.test", 443)), server_hostname="socket.example.test")
s.sendall(b"GET /socket HTTP/1.1\r\nHost: socket.example.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + base64.b64encode(os.urandom(16)) + b"\r\n\r\n")
text = ("say " + os.environ["SOCKET_KEY"]).encode()
s.sendall(bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text)
got = b""
while b"over" not in got:
    p = s.recv(4096)
    if not p: break
    got += p
print(got)
`
