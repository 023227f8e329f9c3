package exchange

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jws"

	"sallyport/gateway/credential"
	"sallyport/policy"
)

// assertionLife is how long what a token endpoint is shown is valid, and early how much
// earlier than now it says that it was made, for clocks that differ a little.
const (
	assertionLife = 5 * time.Minute
	early         = 60 * time.Second
)

// claims are those of a JWT.
type claims map[string]any

// sign returns a JWT. The key is PEM, or for HS256 the bytes themselves.
func sign(algorithm, keyID, key string, header, c claims) (string, error) {
	alg, parsed, err := parseKey(algorithm, key)
	if err != nil {
		return "", err
	}
	h := jws.NewHeaders()
	all := claims{"typ": "JWT"}
	if keyID != "" {
		all["kid"] = keyID
	}
	maps.Copy(all, header)
	for name, value := range all {
		if err := h.Set(name, value); err != nil {
			return "", fmt.Errorf("%w: the header %s of a JWT cannot be set", credential.ErrUnavailable, name)
		}
	}
	payload, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("%w: the claims of a JWT are not JSON", credential.ErrUnavailable)
	}
	token, err := jws.Sign(payload, jws.WithKey(alg, parsed, jws.WithProtectedHeaders(h)))
	if err != nil {
		// The cause is left out: it may quote the key.
		return "", fmt.Errorf("%w: a JWT cannot be signed with its key by %s", credential.ErrNoSecret, algorithm)
	}
	return string(token), nil
}

// parseKey reads a key and checks that it is one of the algorithm's. Its errors have
// nothing of the key in them.
func parseKey(algorithm, text string) (jwa.SignatureAlgorithm, any, error) {
	var none jwa.SignatureAlgorithm
	bad := func(want string) error {
		return fmt.Errorf("%w that %s takes: write %s", credential.ErrNoSecret, algorithm, want)
	}
	if algorithm == "HS256" {
		if len(text) < 32 { // RFC 7518, section 3.2
			return none, nil, bad("a key of at least 32 bytes")
		}
		return jwa.HS256(), []byte(text), nil
	}
	key, err := pemKey(text)
	if err != nil {
		return none, nil, fmt.Errorf("%w: its private key %w", credential.ErrNoSecret, err)
	}
	switch k := key.(type) {
	case *rsa.PrivateKey:
		if algorithm == "RS256" || algorithm == "PS256" {
			if k.N.BitLen() < 2048 {
				return none, nil, bad("an RSA key of at least 2048 bits")
			}
			if algorithm == "PS256" {
				return jwa.PS256(), k, nil
			}
			return jwa.RS256(), k, nil
		}
	case *ecdsa.PrivateKey:
		if algorithm == "ES256" && k.Curve.Params().BitSize == 256 {
			return jwa.ES256(), k, nil
		}
	case ed25519.PrivateKey:
		if algorithm == "EdDSA" {
			return jwa.EdDSA(), k, nil
		}
	}
	switch algorithm {
	case "ES256":
		return none, nil, bad("an EC key on P-256 in PEM")
	case "EdDSA":
		return none, nil, bad("an Ed25519 key in PEM")
	}
	return none, nil, bad("an RSA key in PEM")
}

// pemKey reads the first private key of a PEM text: PKCS #8, PKCS #1 or SEC 1.
func pemKey(text string) (crypto.PrivateKey, error) {
	for rest := []byte(text); ; {
		var b *pem.Block
		if b, rest = pem.Decode(rest); b == nil {
			return nil, errors.New(`is not PEM: it begins with "-----BEGIN PRIVATE KEY-----" and keeps its lines`)
		}
		switch b.Type {
		case "PRIVATE KEY":
			if key, err := x509.ParsePKCS8PrivateKey(b.Bytes); err == nil {
				return key, nil
			}
		case "RSA PRIVATE KEY":
			if key, err := x509.ParsePKCS1PrivateKey(b.Bytes); err == nil {
				return key, nil
			}
		case "EC PRIVATE KEY":
			if key, err := x509.ParseECPrivateKey(b.Bytes); err == nil {
				return key, nil
			}
		case "ENCRYPTED PRIVATE KEY":
			return nil, errors.New("is encrypted: set it without a passphrase")
		default:
			continue
		}
		return nil, errors.New("is damaged, or encrypted")
	}
}

// assert returns a JWT that a token endpoint is shown (RFC 7523, section 3).
func (s *secret) assert(algorithm, keyID, key string, header claims, issuer, subject, audience string, more claims) (string, error) {
	now := time.Now()
	c := claims{"iss": issuer, "sub": subject, "aud": audience, "iat": now.Add(-early).Unix(), "exp": now.Add(assertionLife).Unix(), "jti": rand.Text()}
	maps.Copy(c, more)
	token, err := sign(algorithm, keyID, key, header, c)
	s.shown = append(s.shown, token)
	return token, err
}

// jwtExchange signs the token itself.
type jwtExchange policy.JWTExchange

func (j jwtExchange) trade(_ context.Context, s *secret) (*traded, error) {
	name := "privateKey"
	if j.Algorithm == "HS256" {
		name = "key"
	}
	key, err := s.field(name)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	expires := now.Add(j.Lifetime.Or(5 * time.Minute))
	c := claims{}
	maps.Copy(c, j.Claims)
	for claim, value := range map[string]string{"iss": j.Issuer, "sub": j.Subject} {
		if value != "" {
			c[claim] = value
		}
	}
	switch len(j.Audience) {
	case 0:
	case 1:
		c["aud"] = j.Audience[0]
	default:
		c["aud"] = j.Audience
	}
	c["iat"], c["nbf"], c["exp"], c["jti"] = now.Unix(), now.Add(-early).Unix(), expires.Unix(), rand.Text()
	signed, err := sign(j.Algorithm, j.KeyID, key, nil, c)
	if err != nil {
		return nil, err
	}
	return token(signed, expires.Truncate(time.Second)), nil
}
