package pods

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/state"
)

// spec is a pod's, as the API server answers.
func spec(t *testing.T, text string) PodSpec {
	t.Helper()
	s := PodSpec{NodeName: "n1", RuntimeClassName: "sallyport"}
	must.OK(t, json.Unmarshal([]byte(text), &s))
	return s
}

func manyProbes(n int) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf(`{"image": "a", "livenessProbe": {"tcpSocket": {"port": %d}}, "readinessProbe": {"tcpSocket": {"port": 1}}}`, i+1))
	}
	return `{"containers": [` + strings.Join(list, ",") + `]}`
}

func TestProbePortsOfAPod(t *testing.T) {
	for name, tt := range map[string]struct {
		spec string
		want sandbox.ProbePorts
	}{
		"none":             {`{"containers": [{"ports": [{"containerPort": 8080}]}]}`, sandbox.ProbePorts{}},
		"readiness":        {`{"containers": [{"readinessProbe": {"httpGet": {"port": 8080}}}]}`, sandbox.ProbePorts{8080}},
		"liveness":         {`{"containers": [{"livenessProbe": {"tcpSocket": {"port": 22}}}]}`, sandbox.ProbePorts{22}},
		"startup":          {`{"containers": [{"startupProbe": {"grpc": {"port": 9090, "service": "x"}}}]}`, sandbox.ProbePorts{9090}},
		"exec":             {`{"containers": [{"livenessProbe": {"exec": {"command": ["true"]}}}]}`, sandbox.ProbePorts{}},
		"hooks":            {`{"containers": [{"lifecycle": {"postStart": {"httpGet": {"port": 81}}, "preStop": {"httpGet": {"port": 80}}}}]}`, sandbox.ProbePorts{80, 81}},
		"no such hook":     {`{"containers": [{"lifecycle": {"preStop": {"tcpSocket": {"port": 80}}}}]}`, sandbox.ProbePorts{}},
		"sleep hook":       {`{"containers": [{"lifecycle": {"preStop": {"sleep": {"seconds": 80}}}}]}`, sandbox.ProbePorts{}},
		"sidecar":          {`{"initContainers": [{"restartPolicy": "Always", "startupProbe": {"httpGet": {"port": 15021}}}], "containers": [{}]}`, sandbox.ProbePorts{15021}},
		"one port twice":   {`{"containers": [{"livenessProbe": {"httpGet": {"port": 80}}, "readinessProbe": {"tcpSocket": {"port": 80}}}]}`, sandbox.ProbePorts{80}},
		"by name":          {`{"containers": [{"ports": [{"containerPort": 9}, {"name": "web", "containerPort": 8080}], "readinessProbe": {"httpGet": {"port": "web"}}}]}`, sandbox.ProbePorts{8080}},
		"another's name":   {`{"containers": [{"ports": [{"name": "web", "containerPort": 8080}]}, {"readinessProbe": {"httpGet": {"port": "web"}}}]}`, sandbox.ProbePorts{}},
		"digits in a name": {`{"containers": [{"readinessProbe": {"httpGet": {"port": "80"}}}]}`, sandbox.ProbePorts{}},
		"no port":          {`{"containers": [{"livenessProbe": {"tcpSocket": {"port": 0}}, "readinessProbe": {"tcpSocket": {"port": 65616}}, "startupProbe": {"tcpSocket": {"port": -1}}}]}`, sandbox.ProbePorts{}},
		"ephemeral":        {`{"containers": [{}], "ephemeralContainers": [{"livenessProbe": {"tcpSocket": {"port": 22}}}]}`, sandbox.ProbePorts{}},
		"as many as fit":   {manyProbes(16), sandbox.ProbePorts{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := spec(t, tt.spec).probePorts()
			if err != nil || got != tt.want {
				t.Errorf("got %v, %v, want %v", got, err, tt.want)
			}
		})
	}
}

// The datapath gets the ports with the pod, and again from the record.
func TestProbePortsAreKept(t *testing.T) {
	b := newBed(t)
	p := b.pod("ns", "a", func(p *Pod) { p.Spec = spec(t, `{"containers": [{"readinessProbe": {"httpGet": {"port": 8080}}}]}`) })
	b.attach(b.plug(p, "s1", 7))
	ports := func(when string, want ...uint16) {
		t.Helper()
		var w sandbox.ProbePorts
		copy(w[:], want)
		if got := b.network.attached[get(b.Get("ns/a")).Generation].ProbePorts; got != w {
			t.Errorf("%s: got %v, want %v", when, got, w)
		}
		if got := b.vouched(); got != "ns/a+" {
			t.Errorf("%s: vouched for %q", when, got)
		}
	}
	ports("attached", 8080)
	b.cluster.away = true
	b.restart()
	ports("after a restart", 8080)
	b.follow(b.label(p, map[string]string{"team": "red"}))
	ports("with other labels", 8080)

	// One that an earlier version has attached gets its ports when the API server is there.
	file := filepath.Join(b.opt.Dir, "ns", "a", state.RecordFile)
	rec, err := state.Read(filepath.Dir(file))
	must.OK(t, err)
	rec.ProbePorts = sandbox.ProbePorts{}
	must.OK(t, rec.Write(filepath.Dir(file)))
	if text, err := os.ReadFile(file); err != nil || strings.Contains(string(text), "probePorts") {
		t.Fatalf("an old record has the field: %s, %v", text, err)
	}
	b.restart()
	ports("of an old record")
	b.follow(b.cluster.pods["ns/a"])
	ports("followed", 8080)
	b.restart()
	ports("after another restart", 8080)
	if got := b.history("ns/a"); got != "started changed" {
		t.Errorf("recorded %q", got)
	}
}
