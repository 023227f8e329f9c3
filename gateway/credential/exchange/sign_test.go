package exchange_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	"sallyport/gateway/credential"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// verify checks a JWT with the standard library, by RFC 7515 and RFC 7518, and returns its
// header and claims. The key is the private one.
func verify(t *testing.T, token string, key any) (header, claims map[string]any) {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("%d parts", len(parts))
	}
	decode := func(part string) []byte {
		text, err := base64.RawURLEncoding.DecodeString(part)
		must.OK(t, err)
		return text
	}
	must.OK(t, json.Unmarshal(decode(parts[0]), &header))
	must.OK(t, json.Unmarshal(decode(parts[1]), &claims))
	signed, signature := parts[0]+"."+parts[1], decode(parts[2])
	sum := sha256.Sum256([]byte(signed))
	good := false
	switch header["alg"] {
	case "RS256":
		good = rsa.VerifyPKCS1v15(&key.(*rsa.PrivateKey).PublicKey, crypto.SHA256, sum[:], signature) == nil
	case "PS256":
		good = rsa.VerifyPSS(&key.(*rsa.PrivateKey).PublicKey, crypto.SHA256, sum[:], signature, nil) == nil
	case "ES256":
		good = len(signature) == 64 && ecdsa.Verify(&key.(*ecdsa.PrivateKey).PublicKey, sum[:], new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:]))
	case "EdDSA":
		good = ed25519.Verify(key.(ed25519.PrivateKey).Public().(ed25519.PublicKey), []byte(signed), signature)
	case "HS256":
		mac := hmac.New(sha256.New, []byte(key.(string)))
		mac.Write([]byte(signed))
		good = hmac.Equal(mac.Sum(nil), signature)
	}
	if !good {
		t.Errorf("the signature by %v does not verify", header["alg"])
	}
	return header, claims
}

func TestJWT(t *testing.T) {
	all := map[string]any{"HS256": strings.Repeat("a shared key ", 3)}
	for name, key := range keys() {
		all[name] = key
	}
	for _, algorithm := range policy.JWTAlgorithms() {
		t.Run(algorithm, func(t *testing.T) {
			fields := fixed{}
			if text, shared := all[algorithm].(string); shared {
				fields["key"] = text
			} else {
				fields["privateKey"], fields["other"] = pemOf(t, all[algorithm]), "x"
			}
			e := policy.Exchange{JWT: &policy.JWTExchange{
				Algorithm: algorithm, KeyID: "k1", Issuer: "agents", Subject: "build", Audience: []string{"api.example.com"},
				Claims: map[string]any{"role": "reader", "groups": []any{"a", "b"}}, Lifetime: policy.Duration(10 * time.Minute),
			}}
			s := source(t, e, fields)
			got, m := read(t, s)
			header, claims := verify(t, got["token"], all[algorithm])
			if header["alg"] != algorithm || header["kid"] != "k1" || header["typ"] != "JWT" {
				t.Errorf("header %v", header)
			}
			if claims["iss"] != "agents" || claims["sub"] != "build" || claims["aud"] != "api.example.com" || claims["role"] != "reader" || len(claims["groups"].([]any)) != 2 {
				t.Errorf("claims %v", claims)
			}
			now, exp := float64(time.Now().Unix()), claims["exp"].(float64)
			if claims["iat"].(float64) > now || exp > now+600 || exp < now+590 || float64(m.Expires.Unix()) != exp {
				t.Errorf("at %v: claims %v, expires %v", now, claims, m.Expires)
			}
			if again, _ := read(t, s); again["token"] == got["token"] {
				t.Error("two tokens are the same")
			}
		})
	}
}

func TestWrongKey(t *testing.T) {
	for name, tt := range map[string]struct{ algorithm, key, want string }{
		"of another algorithm": {"ES256", pemOf(t, keys()["RS256"]), "EC key on P-256"},
		"of another, too":      {"RS256", pemOf(t, keys()["EdDSA"]), "RSA key"},
		"short":                {"HS256", "a-shared-key", "32 bytes"},
		"not PEM":              {"RS256", "a-private-key-without-lines", "BEGIN PRIVATE KEY"},
		"damaged":              {"EdDSA", "-----BEGIN PRIVATE KEY-----\nYXByaXZhdGVrZXk=\n-----END PRIVATE KEY-----\n", "damaged"},
		"encrypted":            {"RS256", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nYXByaXZhdGVrZXk=\n-----END ENCRYPTED PRIVATE KEY-----\n", "passphrase"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := source(t, policy.Exchange{JWT: &policy.JWTExchange{Algorithm: tt.algorithm}}, fixed{"k": tt.key}).Read(t.Context())
			if !errors.Is(err, credential.ErrNoSecret) || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), tt.key) {
				t.Errorf("got %v", err)
			}
		})
	}
}
