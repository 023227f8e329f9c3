package signature_test

import (
	"testing"

	"sallyport/internal/test/must"
	"sallyport/internal/webhook/signature"
)

// The signature is that of the standard's own example.
func TestSign(t *testing.T) {
	key, err := signature.ParseSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
	must.OK(t, err)
	got := signature.Sign(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, bad := range []string{"", "whsec_", "whsec_QQ==", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_!"} {
		if _, err := signature.ParseSecret(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
