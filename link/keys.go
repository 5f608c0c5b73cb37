package link

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/exanet/pfd/device"
)

// alpn names the protocol in the TLS handshake: programs of other protocols are refused there.
const alpn = "exanet"

// maxChain is the largest number of certificates of a host (defined by this project).
const maxChain = 4

// keys are a table's credentials, parsed.
type keys struct {
	cluster string
	cert    tls.Certificate
	leaf    *x509.Certificate
	between []*x509.Certificate // of the chain of cert
	roots   *x509.CertPool
	revoked []string
}

// Check reports why the credentials of a table are not those of a host: they do not belong together, are not
// valid now, are revoked, or have other nodes.
func (t *Table) Check(h Host) error {
	_, err := t.keysOf(h)
	return err
}

func (t *Table) keysOf(h Host) (*keys, error) {
	k, err := newKeys(t, h)
	if err == nil {
		err = k.trusts(append([]*x509.Certificate{k.leaf}, k.between...))
	}
	if err == nil {
		err = k.permits([]*x509.Certificate{k.leaf}, h)
	}
	return k, err
}

// newKeys parses and checks the credentials of a table with TLS.
func newKeys(t *Table, self Host) (*keys, error) {
	if t.Credentials == nil {
		return nil, errors.New("TLS is on, and there is no certificate")
	}
	k := &keys{cluster: t.Cluster, roots: x509.NewCertPool()}
	var err error
	if k.cert, err = tls.X509KeyPair(t.Credentials.Certificate, t.Credentials.Key); err != nil {
		return nil, fmt.Errorf("the certificate of host %s and its key: %w", self.Name, err)
	}
	k.leaf = k.cert.Leaf
	for _, der := range k.cert.Certificate[1:] {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("the certificate of host %s: %w", self.Name, err)
		}
		k.between = append(k.between, c)
	}
	if block, _ := pem.Decode(t.Credentials.CA); block == nil || !k.roots.AppendCertsFromPEM(t.Credentials.CA) {
		return nil, errors.New("the file of the certificate authority has no certificate")
	}
	for _, r := range t.Revoked {
		k.revoked = append(k.revoked, serialText(r))
	}
	return k, nil
}

// serialText brings a serial number into the form of serial.
func serialText(s string) string {
	return strings.TrimLeft(strings.ToLower(strings.NewReplacer(":", "", " ", "").Replace(strings.TrimPrefix(s, "0x"))), "0")
}

// serial returns the serial number of a certificate, as Table.Revoked has it.
func serial(c *x509.Certificate) string { return fmt.Sprintf("%x", c.SerialNumber) }

// config returns the configuration of one side of a connection. The certificates name nodes and no
// network addresses, so check takes the place of the verification of crypto/tls.
func (k *keys) config(host string) *tls.Config {
	return &tls.Config{
		MinVersion:                  tls.VersionTLS13,
		Certificates:                []tls.Certificate{k.cert},
		ClientAuth:                  tls.RequireAnyClientCert,
		InsecureSkipVerify:          true,
		NextProtos:                  []string{alpn},
		SessionTicketsDisabled:      true,
		DynamicRecordSizingDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if s.NegotiatedProtocol != alpn {
				return fmt.Errorf("the peer speaks protocol %q, want %q", s.NegotiatedProtocol, alpn)
			}
			if err := k.trusts(s.PeerCertificates); err != nil {
				return fmt.Errorf("host %s does not trust its peer: %w", host, err)
			}
			return nil
		},
	}
}

// trusts checks that the cluster's authority has issued a certificate, and that it is valid now.
func (k *keys) trusts(chain []*x509.Certificate) error {
	if len(chain) == 0 || len(chain) > maxChain { // each costs a verification, and comes from anybody
		return fmt.Errorf("%d certificates, want 1 to %d", len(chain), maxChain)
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: k.roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return fmt.Errorf("certificate %s: %w", describe(chain[0]), err)
	}
	return nil
}

// permits checks that a trusted certificate is that of a host with these nodes.
func (k *keys) permits(chain []*x509.Certificate, h Host) error {
	c := chain[0]
	if slices.Contains(k.revoked, serial(c)) {
		return fmt.Errorf("certificate %s of host %s is revoked: issue a new one", describe(c), h.Name)
	}
	// A host that was removed must not speak as the one that has its nodes now.
	if name := c.Subject.CommonName; name != "" && name != h.Name {
		return fmt.Errorf("certificate %s is that of host %.64q, not of host %s: issue one for it", describe(c), name, h.Name)
	}
	if !covers(c, k.cluster, h.Nodes) {
		return fmt.Errorf("certificate %s of host %s does not cover nodes %v of cluster %s: issue one with the URI exanet://%[4]s/node/%[3]v",
			describe(c), h.Name, h.Nodes, k.cluster)
	}
	return nil
}

// covers reports whether a URI of the certificate, exanet://CLUSTER/node/A-B, has all of the nodes.
func covers(c *x509.Certificate, cluster string, nodes Range) bool {
	for _, u := range c.URIs {
		text, ok := strings.CutPrefix(u.Path, "/node/")
		if !ok || u.Scheme != "exanet" || u.Host != cluster {
			continue
		}
		if r, err := parseRange(text); err == nil && r.First <= nodes.First && nodes.Last <= r.Last {
			return true
		}
	}
	return false
}

// parseRange parses "4-7" or "4".
func parseRange(s string) (Range, error) {
	first, last, both := strings.Cut(s, "-")
	if !both {
		last = first
	}
	a, errA := strconv.ParseUint(first, 10, 22)
	b, errB := strconv.ParseUint(last, 10, 22)
	if errA != nil || errB != nil || a > b {
		return Range{}, fmt.Errorf("nodes %q: want A-B", s)
	}
	return Range{device.NodeID(a), device.NodeID(b)}, nil
}

// describe names a certificate in messages.
func describe(c *x509.Certificate) string {
	var uris []string
	for _, u := range c.URIs[:min(len(c.URIs), 4)] {
		uris = append(uris, u.String())
	}
	return fmt.Sprintf("%.40s (%.200s, valid until %s)", serial(c), strings.Join(uris, " "), c.NotAfter.UTC().Format(time.DateTime))
}
