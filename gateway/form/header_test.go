package form

import (
	"net/http"
	"testing"
)

func TestDropHops(t *testing.T) {
	tests := []struct {
		name       string
		header     http.Header
		upgrade    bool
		kept, gone []string
	}{
		{"named by Connection", http.Header{"Connection": {"Authorization, x-a", "X-B"}, "Authorization": {"x"}, "X-A": {"1"}, "X-B": {"1"}, "X-C": {"1"}}, false,
			[]string{"X-C"}, []string{"Authorization", "X-A", "X-B", "Connection"}},
		{"upgrade to another protocol", http.Header{"Connection": {"Upgrade"}, "Upgrade": {"h2c"}, "Http2-Settings": {"x"}}, true,
			nil, []string{"Connection", "Upgrade"}},
		{"WebSocket", http.Header{"Connection": {"keep-alive, Upgrade, X-A"}, "Upgrade": {"WebSocket"}, "X-A": {"1"}}, true,
			[]string{"Connection", "Upgrade"}, []string{"X-A"}},
		{"WebSocket that was not let through", http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}, false,
			nil, []string{"Connection", "Upgrade"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			DropHops(test.header, test.upgrade)
			for _, name := range test.kept {
				if len(test.header[name]) == 0 {
					t.Errorf("%s is gone", name)
				}
			}
			for _, name := range test.gone {
				if len(test.header[name]) != 0 {
					t.Errorf("%s is kept", name)
				}
			}
		})
	}
}
