// Package signature signs messages as Standard Webhooks does
// (https://www.standardwebhooks.com, version 1).
package signature

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
)

// ParseSecret reads a secret: whsec_ and Base64 of 24 to 64 bytes.
func ParseSecret(text string) ([]byte, error) {
	rest, ok := strings.CutPrefix(strings.TrimSpace(text), "whsec_")
	secret, err := base64.StdEncoding.DecodeString(rest)
	if !ok || err != nil || len(secret) < 24 || len(secret) > 64 {
		return nil, errors.New("a webhook's secret is whsec_ and the Base64 of 24 to 64 random bytes")
	}
	return secret, nil
}

// Sign returns the webhook-signature of a message: v1 and HMAC-SHA256 over its id,
// timestamp and body.
func Sign(secret []byte, id, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
