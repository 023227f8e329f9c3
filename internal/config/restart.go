package config

import (
	"reflect"
	"strings"
)

// NeedsRestart lists the keys, in the order of their declaration, that differ from the
// configuration that the daemon started with and that a reload does not apply.
func (c *Config) NeedsRestart(started *Config) []string {
	var keys []string
	now, then := reflect.ValueOf(c).Elem(), reflect.ValueOf(started).Elem()
	for i := range now.NumField() {
		f := now.Type().Field(i)
		key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if key == "ssh" {
			a, b := c.SSH, started.SSH
			a.Keys, b.Keys = nil, nil
			if reflect.DeepEqual(a, b) {
				continue
			}
		}
		if key == "memory" {
			a, b := c.Memory, started.Memory
			a.Trusted, b.Trusted = nil, nil
			if reflect.DeepEqual(a, b) {
				continue
			}
		}
		if key == "audit" {
			a, b := c.Audit, started.Audit
			a.Sinks, b.Sinks = nil, nil
			a.Retention, b.Retention = Retention{}, Retention{}
			if reflect.DeepEqual(a, b) {
				continue
			}
		}
		if key == "" || key == "vault" || key == "registries" || reflect.DeepEqual(now.Field(i).Interface(), then.Field(i).Interface()) {
			continue
		}
		keys = append(keys, key)
	}
	return keys
}
