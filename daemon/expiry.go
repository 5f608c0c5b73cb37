package daemon

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"time"

	"github.com/exanet/pfd/link"
)

// warnings are the times before the end of a certificate at which pfd warns of it, each once. It also warns
// when it is given a certificate that ends within the first of them. Defined by this project.
var warnings = [...]time.Duration{30 * day, 7 * day, day, 0}

const day = 24 * time.Hour

// ofAuthority is whose certificate ends if it is that of the authority.
const ofAuthority = "of the authority"

// expiry is when the links need a new certificate.
type expiry struct {
	at    time.Time // zero: without TLS they need none
	whose string
	told  int // of warnings
}

// expiryOf returns when the certificate of a host or that of its authority ends, whichever is first.
func expiryOf(host string, c *link.Credentials) (e expiry) {
	if c == nil {
		return e
	}
	for _, cert := range certificates(c.Certificate) {
		if e.at.IsZero() || cert.NotAfter.Before(e.at) {
			e = expiry{at: cert.NotAfter, whose: "of host " + host}
		}
	}
	var last time.Time // any of the authority's certificates is enough
	for _, cert := range certificates(c.CA) {
		if cert.NotAfter.After(last) {
			last = cert.NotAfter
		}
	}
	if !last.After(e.at) { // a certificate that the authority issues now ends then, too
		e = expiry{at: last, whose: ofAuthority}
	}
	return e
}

// certificates parses PEM that package link has accepted.
func certificates(text []byte) (list []*x509.Certificate) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			list = append(list, c)
		}
	}
	return list
}

// warn warns if the certificate ends soon, and has not been warned of.
func (e *expiry) warn(now time.Time, log *slog.Logger) {
	due := 0
	for due < len(warnings) && !e.at.IsZero() && e.at.Sub(now) <= warnings[due] {
		due++
	}
	if due <= e.told {
		return
	}
	e.told = due
	log.Warn(fmt.Sprintf("the certificate %s ends, and with it the links to other hosts: make a new one (docs/hosts.md, Certificates)", e.whose),
		"ends", e.at.UTC().Format(time.DateTime), "left", e.at.Sub(now).Round(time.Hour))
}
