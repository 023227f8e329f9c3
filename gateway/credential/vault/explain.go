package vault

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/hashicorp/vault/api"

	"sallyport/gateway/credential"
)

// status returns the HTTP status of Vault's answer, or 0 when there was none.
func status(err error) int {
	if answer, ok := errors.AsType[*api.ResponseError](err); ok {
		return answer.StatusCode
	}
	return 0
}

// says tells whether Vault's own words hold a phrase. They are not passed on:
// what answers at the address may not be Vault.
func says(err error, phrase string) bool {
	var answer *api.ResponseError
	return errors.As(err, &answer) && strings.Contains(strings.ToLower(strings.Join(answer.Errors, "\n")), phrase)
}

func (v *Client) sealed() error {
	return fmt.Errorf("%w: Vault at %s is sealed; run: vault operator unseal", credential.ErrUnavailable, v.address)
}

// explain turns an error of the API client into one of package credential, with
// what an operator can do. what is the deed, such as "reading secret/data/x", and needs
// what a token's policy allows it with.
func (v *Client) explain(what, needs string, err error) error {
	switch code := status(err); {
	case code == http.StatusServiceUnavailable && says(err, "sealed"):
		return v.sealed()
	case code == http.StatusForbidden && says(err, "invalid token"):
		return fmt.Errorf("%w: %s: Vault at %s does not know the token: it was revoked or has expired; write a new one to vault.auth.tokenFile, or use appRole",
			credential.ErrRefused, what, v.address)
	case code == http.StatusForbidden:
		return fmt.Errorf("%w: %s: Vault at %s says permission denied; give the token's policy %s, and look that the token was not revoked",
			credential.ErrRefused, what, v.address, cmp.Or(needs, "what that takes"))
	case code == http.StatusTooManyRequests || code >= 500 || code == 412 || code == 472 || code == 473:
		return fmt.Errorf("%w: %s: Vault at %s answers with status %d; look at its log", credential.ErrUnavailable, what, v.address, code)
	case code == astray:
		return fmt.Errorf("%w: %s: Vault at %s leads from node to node: its cluster has no active node now, or vault.address is not its", credential.ErrUnavailable, what, v.address)
	case code != 0:
		return fmt.Errorf("%w: %s: Vault at %s answers with status %d; check vault.address and the path", credential.ErrRefused, what, v.address, code)
	}

	// The URL in it says nothing new, and can be long.
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err
	}
	var cert *tls.CertificateVerificationError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax) || errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: %s: Vault at %s answers with something that is not JSON; check vault.address", credential.ErrUnavailable, what, v.address)
	case errors.As(err, &cert):
		return fmt.Errorf("%w: %s: the certificate of Vault at %s is not trusted: %w; set vault.roots to its authority's PEM file",
			credential.ErrUnavailable, what, v.address, cert.Err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %s: Vault at %s did not answer in time; check vault.address and the network", credential.ErrUnavailable, what, v.address)
	}
	return fmt.Errorf("%w: %s: Vault at %s cannot be reached: %w; check vault.address, and that the server runs", credential.ErrUnavailable, what, v.address, err)
}
