package credential

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"sallyport/policy"
)

// Check says why the fields of a secret cannot be given in the way that a rule names, or
// nil. No value of a field is in the error.
func Check(i policy.Inject, fields map[string]Secret, now time.Time) error {
	if len(fields) == 0 {
		return errors.New("the secret has no field")
	}
	if i.TokenEndpoint { // which it is not given to
		return nil
	}
	c, err := compose(i, fields)
	if err != nil {
		return err
	}
	if i.SSH != nil {
		return checkSSH(fields)
	}
	return c.expired(now)
}

// checkSSH says why a private key cannot be read. An error of package ssh has nothing of
// the key in it.
func checkSSH(fields map[string]Secret) error {
	key := []byte(strings.TrimSpace(fields[FieldPrivateKey].Reveal()) + "\n")
	var err error
	if passphrase := fields[FieldPassphrase].Reveal(); passphrase != "" {
		_, err = ssh.ParsePrivateKeyWithPassphrase(key, []byte(passphrase))
	} else {
		_, err = ssh.ParsePrivateKey(key)
	}
	if err != nil {
		return fmt.Errorf("%w: the field %s is no private key of SSH: %w; set the file that ssh-keygen makes, and the field %s if it has one",
			ErrUnfit, FieldPrivateKey, err, FieldPassphrase)
	}
	return nil
}
