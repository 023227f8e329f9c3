package config

import (
	"reflect"
	"strings"
)

// NeedsRestart lists the keys, in the order of their declaration, that differ from the
// configuration that the daemon started with and that a reload does not apply.
func (c *Config) NeedsRestart(started *Config) []string {
	now, then := *c, *started
	for _, x := range []*Config{&now, &then} { // but for what a reload applies
		x.SSH.Keys, x.Memory.Trusted = nil, nil
		x.Audit.Sinks, x.Audit.Retention = nil, Retention{}
		x.Vault, x.Registries = Vault{}, nil
	}
	var keys []string
	a, b := reflect.ValueOf(now), reflect.ValueOf(then)
	for i := range a.NumField() {
		key, _, _ := strings.Cut(a.Type().Field(i).Tag.Get("yaml"), ",")
		if key != "" && !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
			keys = append(keys, key)
		}
	}
	return keys
}
