package vault

import (
	"context"
	"fmt"
	"strings"

	"sallyport/gateway/credential"
	"sallyport/internal/secretfile"
)

// maxToken is the size in bytes of the largest file with a token or secret ID.
const maxToken = 64 << 10

// tokenFile logs in with the token in a file, such as Vault Agent keeps fresh.
// The file is small and reads are rare, so it is read each time.
type tokenFile struct{ path string }

func (f *tokenFile) token(context.Context) (string, error) {
	return readWord("vault.auth.tokenFile", f.path)
}

// renewed: the file may have been written since.
func (f *tokenFile) renewed(ctx context.Context, refused string) (bool, error) {
	now, err := f.token(ctx)
	return err == nil && now != refused, err
}

// readWord reads a file that holds one token and perhaps a newline.
func readWord(key, path string) (string, error) {
	text, err := secretfile.Read(path, maxToken)
	if err != nil {
		return "", fmt.Errorf("%w: %s: %w", credential.ErrRefused, key, err)
	}
	word := strings.TrimSpace(string(text))
	if word == "" || strings.ContainsFunc(word, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("%w: %s: %s does not hold one token", credential.ErrRefused, key, path)
	}
	return word, nil
}
