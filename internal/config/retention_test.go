package config_test

import (
	"strings"
	"testing"
	"time"

	"sallyport/internal/config"
	"sallyport/internal/test/must"
)

func TestRetention(t *testing.T) {
	parse := func(text string) (config.Retention, error) {
		c, err := config.Parse("sallyport.yaml", []byte("audit:\n  retention: "+text+"\n"))
		return c.Audit.Retention, err
	}
	r, err := parse("{keep: 90d, bytes: 100GiB, compress: false}")
	if err != nil || time.Duration(r.Keep) != 90*24*time.Hour || r.Bytes != 100<<30 || r.Compress == nil || *r.Compress {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := parse("{keep: 36h}"); err != nil || time.Duration(r.Keep) != 36*time.Hour || r.Compress != nil {
		t.Errorf("%+v, %v", r, err)
	}
	for text, want := range map[string]string{
		"{keep: 90}":                "is not a time as 90d or 720h",
		"{keep: 1w}":                "is not a time as 90d or 720h",
		"{keep: -3d}":               "is not a time as 90d or 720h",
		"{keep: 9999999999999999d}": "is not a time as 90d or 720h",
		"{keep: 10m}":               "less than 1h",
		"{keep: -5h}":               "less than 1h",
		"{bytes: 1MiB}":             "less than one segment",
		"{age: 90d}":                "unknown key",
		"{compress: maybe}":         "true or false",
	} {
		if _, err := parse(text); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "sallyport.yaml:2:") {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	// It is reloaded.
	now, err := config.Parse("sallyport.yaml", []byte("audit: {retention: {keep: 90d}}"))
	must.OK(t, err)
	then, _ := config.Parse("sallyport.yaml", nil)
	if keys := now.NeedsRestart(then); len(keys) > 0 {
		t.Errorf("a restart is needed for %v", keys)
	}
}
