package proxy

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// Without its handlers the proxy that carries requests must carry none: they
// are the only path to an upstream.
func TestProxyWithoutHandlersReachesNothing(t *testing.T) {
	var reached atomic.Int32
	for _, secure := range []bool{true, false} {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
		s.Config.ConnState = func(net.Conn, http.ConnState) { reached.Add(1) }
		if secure {
			s.StartTLS()
		} else {
			s.Start()
		}
		t.Cleanup(s.Close)
		for _, env := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
			t.Setenv(env, s.URL)
		}
		t.Setenv("NO_PROXY", "none.example.test")
		proxy := newProxy(slog.New(slog.DiscardHandler))
		if len(proxy.Tr.TLSNextProto) > 0 || proxy.Tr.Proxy != nil || proxy.AllowHTTP2 || proxy.CertStore != nil {
			t.Errorf("the proxy has ways of its own: %+v", proxy)
		}
		for _, r := range []*http.Request{
			httptest.NewRequest("GET", s.URL, nil),
			httptest.NewRequest("POST", s.URL+"/x", strings.NewReader("body")),
			httptest.NewRequest("CONNECT", strings.TrimPrefix(strings.TrimPrefix(s.URL, "https://"), "http://"), nil),
			httptest.NewRequest("GET", "/origin-form", nil),
		} {
			w := httptest.NewRecorder()
			proxy.ServeHTTP(w, r)
			if w.Code < 400 {
				t.Errorf("%s %s: %d", r.Method, r.URL, w.Code)
			}
			_, _ = io.Copy(io.Discard, w.Body)
		}
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("%d connections and requests reached an upstream", n)
	}
}
