package ocsf_test

import (
	"strings"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/internal/test/ocsf"
)

// whole is an event that each version has.
const whole = `{"metadata":{"version":"VERSION","product":{"name":"a"},"profiles":["security_control"]},"time":1,"category_uid":4,"class_uid":4002,
"activity_id":3,"type_uid":400203,"severity_id":1,"action_id":1,"dst_endpoint":{"ip":"192.0.2.1","port":443},
"http_request":{"http_method":"GET","url":{"path":"/"}},"unmapped":{"a":{"b":1}}}`

func TestValidate(t *testing.T) {
	tests := []struct{ name, from, to, want string }{
		{"a whole event", "", "", ""},
		{"an attribute that nothing has", `"time":1`, `"time":1,"times":1`, "times: there is no such attribute"},
		{"an attribute of an object that it does not have", `"port":443`, `"ports":443`, "dst_endpoint.ports: there is no such"},
		{"without what is required", `"time":1,`, ``, "has no time"},
		{"an object of nothing", `{"ip":"192.0.2.1","port":443}`, `{"port":443}`, "dst_endpoint: has 0 of"},
		{"an object without what it requires", `"unmapped"`, `"tls":{"sni":"a"},"unmapped"`, "tls: has no version"},
		{"a profile that is not named", `,"profiles":["security_control"]`, ``, "action_id: is of profile security_control"},
		{"a profile that the class does not have", `["security_control"]`, `["incident","security_control"]`, "incident is none of"},
		{"a number that is none of the enumeration", `"action_id":1`, `"action_id":7`, "action_id: is 7"},
		{"a word that is none of the enumeration", `"GET"`, `"FETCH"`, "http_method: is FETCH"},
		{"another without a name", `"action_id":1`, `"action_id":99`, "action does not say what"},
		{"text in place of a number", `"time":1`, `"time":"1"`, "time: is no long_t"},
		{"a fraction", `"time":1`, `"time":1.5`, "time: is no long_t"},
		{"a number in place of text", `"path":"/"`, `"path":1`, "http_request.url.path: is no text"},
		{"no address", `192.0.2.1`, `example`, "dst_endpoint.ip: is no ip_t"},
		{"no port", `443`, `70000`, "is not within"},
		{"a value in place of an object", `{"path":"/"}`, `"/"`, "http_request.url: is no url"},
		{"a value in place of an array", `["security_control"]`, `"security_control"`, "is no array"},
		{"null", `"time":1`, `"time":null`, "time: is null"},
		{"another class's number", `"type_uid":400203`, `"type_uid":400103`, "type_uid: is 400103"},
		{"another version", `"version":"VERSION"`, `"version":"1.0.0"`, "metadata.version: is 1.0.0"},
		{"no class", `"class_uid":4002`, `"class_uid":4999`, "no class 4999"},
		{"a constraint of the class", `"http_request":{"http_method":"GET","url":{"path":"/"}},`, ``, "has 0 of [http_request http_response]"},
		{"deprecated", `"unmapped"`, `"tls":{"version":"1.3","sans":[]},"unmapped"`, "tls.sans: is deprecated"},
	}
	for version := range ocsf.Versions {
		s, err := ocsf.Load(version)
		must.OK(t, err)
		for _, tt := range tests {
			t.Run(version+", "+tt.name, func(t *testing.T) {
				event := strings.Replace(strings.Replace(whole, tt.from, tt.to, 1), "VERSION", version, 1)
				err := s.Validate([]byte(event))
				switch {
				case tt.want == "" && err != nil, tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
					t.Errorf("got %v, want %q", err, tt.want)
				}
			})
		}
	}
}
