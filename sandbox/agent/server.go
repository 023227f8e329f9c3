package agent

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"sallyport/sandbox/agent/wire"
)

// Options of NewServer.
type Options struct {
	Key ed25519.PublicKey // of the host
	// User is whom commands run as that name none: a name or number, and
	// maybe a group after a colon; empty: root.
	User string
	// Init says that this process is PID 1: it reaps everybody's children and
	// answers nobody inside.
	Init bool
}

// Server answers the host. Nobody else gets an answer.
type Server struct {
	opt      Options
	key      ed25519.PrivateKey // its own: see wire.Identity
	children *children
	commands *commands
	http     *http.Server
}

// NewServer returns a Server; Serve makes it answer.
func NewServer(opt Options) *Server {
	s := &Server{opt: opt, children: newChildren(opt.Init)}
	_, s.key, _ = ed25519.GenerateKey(nil) // never fails
	s.commands = newCommands(s.children, opt.User)
	f, ports := &files{user: opt.User, using: s.commands.attach}, newPorts()
	s.answer(s.register, s.commands.register, f.register, ports.register, func(mux *http.ServeMux) {
		mux.HandleFunc("GET /sftp", func(w http.ResponseWriter, r *http.Request) { f.sftp(w, r, ports) })
	})
	return s
}

// NewFiles returns a Server that reads and writes files, and does nothing else: it starts
// no command and connects to no port.
func NewFiles(key ed25519.PublicKey) *Server {
	s := &Server{opt: Options{Key: key}}
	s.answer((&files{using: func() func() { return func() {} }}).register)
	return s
}

// answer has the server answer on some routes.
func (s *Server) answer(routes ...func(*http.ServeMux)) {
	mux := http.NewServeMux()
	for _, register := range routes {
		register(mux)
	}
	s.http = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 20 * time.Second,
		MaxHeaderBytes:    64 << 10,
		// The server's log goes nowhere: the agent has no output.
		ErrorLog: log.New(io.Discard, "", 0),
	}
}

// Serve answers on a listener until that is closed.
func (s *Server) Serve(l net.Listener) error {
	return s.http.Serve(newAuthListener(l, s.opt.Key, s.opt.Init))
}

func (s *Server) register(mux *http.ServeMux) {
	mux.HandleFunc("POST /identity", func(w http.ResponseWriter, r *http.Request) {
		var i wire.Identity
		if !decode(w, r, &i) {
			return
		}
		local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		at, err := netip.ParseAddrPort(fmt.Sprint(local))
		if err == nil && len(i.Nonce) != wire.NonceSize {
			err = fmt.Errorf("a nonce of %d bytes", len(i.Nonce))
		}
		if err != nil {
			refuse(w, http.StatusBadRequest, err)
			return
		}
		answer(w, http.StatusOK, wire.Identity{
			Key:       s.key.Public().(ed25519.PublicKey),
			Signature: ed25519.Sign(s.key, wire.Identified(i.Nonce, at)),
		})
	})
}

// listen is where an agent is reached: at every address, since a fork has another
// one, and without SO_REUSEADDR, which package net would set: in gVisor another process
// could bind the port at one address beside it, root or not, and have what comes to
// that.
func listen() (net.Listener, error) {
	c := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var set error
		err := c.Control(func(fd uintptr) { set = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 0) })
		return errors.Join(err, set)
	}}
	c.SetMultipathTCP(false)
	return c.Listen(context.Background(), "tcp4", fmt.Sprintf(":%d", wire.Port))
}

// hostKey reads the key that the host has mounted.
func hostKey() (ed25519.PublicKey, error) {
	data, err := os.ReadFile(wire.KeyFile)
	if err != nil {
		return nil, err
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(data)))
	if err != nil || len(key) != ed25519.PublicKeySize {
		return nil, errors.New("not a key")
	}
	return key, nil
}

// maxBody bounds a request's JSON, in bytes.
const maxBody = 4 << 20

// decode reads a JSON body and answers itself when it cannot.
func decode(w http.ResponseWriter, r *http.Request, v any) bool {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(v); err != nil {
		refuse(w, http.StatusBadRequest, err)
		return false
	}
	return true
}

func answer(w http.ResponseWriter, status int, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		refuse(w, http.StatusInternalServerError, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(data)
}

func refuse(w http.ResponseWriter, status int, err error) {
	f := wire.Failure{Error: err.Error()}
	var s *startError
	if errors.As(err, &s) {
		f.Code = s.code
	}
	answer(w, status, f)
}
