package gateway_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/approval"
)

func TestHeldWebSocket(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"transparent", "explicit"} {
		for _, version := range []string{"h1", "h2"} {
			t.Run(way+"/"+version, func(t *testing.T) {
				f := newOperatorStore(t)
				m := newVersionEnv(t, way, version, "h1", "https", asking(f))
				if m.explicit {
					m.dial = m.connect
				}
				m.policy(m.approve(policy.Approvals{}))
				m.mux.Handle("/ws", echoing)
				for _, approve := range []bool{true, false} {
					answered := make(chan struct{})
					go func() {
						defer close(answered)
						for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
							if list, _, _ := f.List(); len(list) == 1 && list[0].Subject.Path == "/ws" && list[0].Subject.Method == "GET" {
								f.answer(t, list[0].ID, approval.Answer{Approve: approve})
								return
							}
						}
					}()
					s, resp, err := m.upgrade(t, "/ws")
					<-answered
					if approve {
						must.OK(t, err)
						s.echoes(t, "hello")
						s.Close()
					} else if err == nil || resp == nil || resp.StatusCode != 403 {
						t.Errorf("denied: %v %v", resp, err)
					}
				}
				if decisions, _ := m.settled(t); len(decisions) != 2 || decisions[0].Unmapped.Sallyport.Approval == nil {
					t.Errorf("%d decisions", len(decisions))
				}
			})
		}
	}
}

// rpc is a call as gRPC makes it.
func (m *versionEnv) rpc(t *testing.T, timeout string, body io.Reader) *http.Request {
	r := m.request(t, "POST", "/shop.Orders/Cancel", body)
	r.Header.Set("Content-Type", "application/grpc")
	r.Header.Set("Te", "trailers")
	if timeout != "" {
		r.Header.Set("Grpc-Timeout", timeout)
	}
	return r
}

func TestHeldCall(t *testing.T) {
	t.Parallel()
	newCall := func(t *testing.T, settings policy.Approvals) (*versionEnv, *operatorStore) {
		f := newOperatorStore(t)
		m := newVersionEnv(t, "transparent", "h2", "h2", "https", asking(f))
		m.policy(m.approve(settings))
		m.handle("/", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/grpc")
			w.Header().Set("Trailer", "Grpc-Status")
			w.Header().Set("X-Left", r.Header.Get("Grpc-Timeout"))
			w.(http.Flusher).Flush()
			for part := make([]byte, 64); ; {
				n, err := r.Body.Read(part)
				_, _ = w.Write(part[:n])
				w.(http.Flusher).Flush()
				if err != nil {
					break
				}
			}
			w.Header().Set("Grpc-Status", "0")
		})
		return m, f
	}
	t.Run("approved", func(t *testing.T) {
		m, f := newCall(t, policy.Approvals{})
		done := m.send(m.rpc(t, "30S", strings.NewReader("\x00\x00\x00\x00\x02hi")))
		f.answer(t, f.waiting(t, 1)[0].ID, approval.Answer{Approve: true})
		got := <-done
		got.want(t, 200, "hi")
		left, err := time.ParseDuration(got.header.Get("X-Left") + "s") // 29900m and s: milliseconds
		if err != nil || left >= 30*time.Second || left < 20*time.Second {
			t.Errorf("the upstream is given %q: %v", got.header.Get("X-Left"), err)
		}
	})
	t.Run("denied", func(t *testing.T) {
		m, f := newCall(t, policy.Approvals{})
		done := m.send(m.rpc(t, "", strings.NewReader("x")))
		f.answer(t, f.waiting(t, 1)[0].ID, approval.Answer{})
		if got := <-done; got.status != 200 || got.header.Get("Grpc-Status") != "7" || !strings.Contains(got.header.Get("Grpc-Message"), "denied by alice") {
			t.Errorf("%+v", got)
		}
	})
	t.Run("to be sent again", func(t *testing.T) {
		m, _ := newCall(t, policy.Approvals{Answer: policy.AnswerPoll})
		if got := <-m.send(m.rpc(t, "", strings.NewReader("x"))); got.status != 200 || got.header.Get("Grpc-Status") != "9" || got.header.Get("Sallyport-Approval") == "" {
			t.Errorf("%+v", got)
		}
	})
	t.Run("its deadline", func(t *testing.T) {
		m, f := newCall(t, policy.Approvals{})
		// Its client does not enforce what it says.
		if got := <-m.send(m.rpc(t, "300m", strings.NewReader("x"))); got.status != 200 || got.header.Get("Grpc-Status") != "4" {
			t.Errorf("%+v", got)
		}
		f.waiting(t, 0)
	})
	t.Run("a stream that waits for its answer", func(t *testing.T) {
		m, f := newCall(t, policy.Approvals{})
		in, out := io.Pipe()
		defer out.Close()
		const first, second, third = "\x00\x00\x00\x00\x011", "\x00\x00\x00\x00\x012", "\x00\x00\x00\x00\x013"
		go func() { _, _ = io.WriteString(out, first) }()
		answered := make(chan *http.Response, 1)
		go func() {
			resp, err := m.client.Do(m.rpc(t, "", in))
			if err != nil {
				t.Error(err)
			}
			answered <- resp
		}()
		asked := f.waiting(t, 1)[0]
		if asked.Subject.Length != -1 {
			t.Errorf("asked %+v", asked)
		}
		f.answer(t, asked.ID, approval.Answer{Approve: true, Span: approval.Session})
		resp := <-answered
		if resp == nil {
			return
		}
		defer resp.Body.Close()
		for _, part := range []string{first, second, third} {
			got := make([]byte, len(part))
			if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != part {
				t.Fatalf("%q %v, want %q", got, err, part)
			}
			if next := map[string]string{first: second, second: third}[part]; next != "" {
				if _, err := io.WriteString(out, next); err != nil {
					t.Fatal(err)
				}
			}
		}
		out.Close()
		if rest, err := io.ReadAll(resp.Body); len(rest) > 0 || err != nil || resp.Trailer.Get("Grpc-Status") != "0" {
			t.Errorf("its end: %q %v %v", rest, err, resp.Trailer)
		}
	})
}

// A connection that cannot be read is held as a whole.
func TestHeldConnection(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"transparent", "explicit"} {
		for _, first := range []string{"client", "server"} {
			for _, how := range []string{"approved", "denied", "gone", "expired"} {
				t.Run(way+"/"+first+" speaks first/"+how, func(t *testing.T) {
					f := newOperatorStore(t)
					w := newNetEnv(t, asking(f), speaksFirst)
					w.policy(func(in policy.Input) policy.Decision {
						settings := policy.Approvals{Answer: policy.AnswerPoll}
						if how == "expired" {
							settings.Timeout = policy.Duration(3 * time.Second) // in which the test sees it wait
						}
						return policy.Decision{Action: policy.Approve, Rule: "db", RuleType: "egress", Reason: "ask", Upstream: w.reach, Approvals: &settings}
					})
					greeting := ""
					if first == "server" {
						greeting = "220 ready\r\n"
					}
					o := w.bytes("db.example.test", greeting)
					dial := dialler(w.steer)
					if way == "explicit" {
						dial = w.connect
					}
					c, err := dial(t.Context(), "tcp", o.address())
					must.OK(t, err)
					defer c.Close()
					_ = c.SetDeadline(time.Now().Add(patience))
					if first == "client" {
						io.WriteString(c, "\x00\x00\x00\x17 startup\n")
					}
					asked := f.waiting(t, 1)[0]
					if s := asked.Subject; s.Host != "db.example.test" || s.Port != o.port || s.Method != "" || s.Protocol != "other" {
						t.Errorf("asked %+v", s)
					}
					if names := w.zone.names(); len(names) != 0 {
						t.Errorf("looked up before it was approved: %v", names)
					}
					switch how {
					case "approved":
						f.answer(t, asked.ID, approval.Answer{Approve: true})
						in := bufio.NewReader(c)
						if greeting != "" {
							if line, err := in.ReadString('\n'); err != nil || line != greeting {
								t.Fatalf("%q %v", line, err)
							}
							io.WriteString(c, "\x00\x00\x00\x17 startup\n")
						}
						io.WriteString(c, "more\n")
						c.(*net.TCPConn).CloseWrite()
						if got, err := io.ReadAll(in); err != nil || string(got) != "\x00\x00\x00\x17 startup\nmore\n" {
							t.Errorf("%q %v", got, err)
						}
						decisions, _ := w.settled(t)
						if s := decisions[0].Unmapped.Sallyport; len(decisions) != 1 || s.Decision != "tunnel" || s.Approval == nil || s.Approval.Operator != "alice" {
							t.Errorf("%d decisions, %+v", len(decisions), s)
						}
						return
					case "denied":
						f.answer(t, asked.ID, approval.Answer{})
					case "gone":
						c.(*net.TCPConn).SetLinger(0) // resets
						c.Close()
						f.waiting(t, 0)
						return
					}
					if got, err := io.ReadAll(c); len(got) > 0 {
						t.Errorf("%q %v", got, err)
					}
					decisions, _ := w.settled(t)
					if s := decisions[0].Unmapped.Sallyport; len(decisions) != 1 || s.Decision != "deny" || s.Approval == nil || s.Approval.ID != asked.ID {
						t.Errorf("%d decisions, %s", len(decisions), fmt.Sprintf("%+v", s))
					}
				})
			}
		}
	}
}
