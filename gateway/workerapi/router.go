package workerapi

import "crypto/x509"

// RouterName is the name by which nodes know each other's listener of a router's clients: the
// first of its certificate, "" for none.
func RouterName(c *x509.Certificate) string {
	for _, name := range c.DNSNames {
		return name
	}
	return ""
}
