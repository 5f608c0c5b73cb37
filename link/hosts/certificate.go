package hosts

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net/url"
	"os"
	"slices"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/link"
	"github.com/exanet/pfd/link/handover"
)

// lifetime is how long certificates are valid: they end with their CA's. Defined by this project.
const lifetime = 10 * 365 * 24 * time.Hour

// early is how long before it was made a certificate is valid, for hosts whose clocks are behind.
// Defined by this project.
const early = time.Hour

// CA is the certificate authority of a cluster.
type CA struct {
	cluster string
	cert    *x509.Certificate
	key     *ecdsa.PrivateKey
}

// NewCA makes the certificate authority of a cluster: ECDSA P-256.
func NewCA(cluster string, now time.Time) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "ExaNet cluster " + cluster, Organization: []string{cluster}},
		NotBefore:             now.Add(-early),
		NotAfter:              now.Add(lifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &CA{cluster, cert, key}, err
}

// LoadCA returns the certificate authority of a cluster from its certificate and key, in PEM.
func LoadCA(cluster string, cert, key []byte) (*CA, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	k, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !pair.Leaf.IsCA {
		return nil, errors.New("not a certificate authority with an ECDSA key")
	}
	return &CA{cluster, pair.Leaf, k}, nil
}

// PEM returns the certificate and the key.
func (c *CA) PEM() (cert, key []byte, err error) { return encode(c.cert.Raw, c.key) }

// Issue makes the certificate and the key of a host with these nodes.
func (c *CA) Issue(host string, nodes [2]device.NodeID, now time.Time) (cert, key []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: host, Organization: []string{c.cluster}},
		NotBefore:    now.Add(-early),
		NotAfter:     c.cert.NotAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		URIs:         []*url.URL{nodesURI(c.cluster, nodes)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, c.cert, &k.PublicKey, c.key)
	if err != nil {
		return nil, nil, err
	}
	return encode(der, k)
}

func encode(der []byte, k *ecdsa.PrivateKey) (cert, key []byte, err error) {
	b, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: b}), nil
}

// newSerial returns a random positive number of 127 bits.
func newSerial() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	return n.Add(n, big.NewInt(1)), nil
}

// nodesURI returns the name of a host's nodes in its certificate (docs/spec/hosts.md).
func nodesURI(cluster string, nodes [2]device.NodeID) *url.URL {
	return &url.URL{Scheme: "exanet", Host: cluster, Path: fmt.Sprintf("/node/%d-%d", nodes[0], nodes[1])}
}

// Credentials reads the certificate and the key of host self and the certificate of the CA, and
// checks them as pfd does. Without TLS it returns nil. Errors match ErrFile.
func (f *File) Credentials(self string) (*handover.Credentials, error) {
	h, err := f.Find(self)
	if err != nil || !f.Secure() {
		return nil, err
	}
	i := slices.IndexFunc(f.Hosts, func(h Host) bool { return h.Name == self })
	certFile, keyFile, caFile := f.beside(h.Certificate, h.Name+".pem"), f.beside(h.Key, h.Name+".key"), f.beside(f.CA, "ca.pem")
	const remedy = "copy it from where exanetctl host init or add has made it"
	ca, err := readFile(caFile)
	if err != nil {
		return nil, f.fault(-1, "ca", "the certificate of the cluster: %w: %s", err, remedy)
	}
	cert, err := readFile(certFile)
	if err != nil {
		return nil, f.fault(i, "certificate", "the certificate: %w: %s", err, remedy)
	}
	key, err := readFile(keyFile)
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return nil, f.fault(i, "key", "the key: %w: give it to the user of exanet-hostd, as chown exanet-host %s", err, keyFile)
		}
		return nil, f.fault(i, "key", "certificate %s without its key: %w: %s", certFile, err, remedy)
	}
	if info, err := os.Stat(keyFile); err == nil && info.Mode().Perm()&0o007 != 0 {
		return nil, f.fault(i, "key", "key %s has mode %#o, so that every user may use it: chmod 600 %s", keyFile, info.Mode().Perm(), keyFile)
	}
	t := link.Table{Cluster: f.Cluster, Revoked: f.Revoked, Credentials: &link.Credentials{Certificate: cert, Key: key, CA: ca}}
	if err := t.Check(link.Host{Name: h.Name, Nodes: link.Range{First: h.nodes[0], Last: h.nodes[1]}}); err != nil {
		return nil, f.fault(i, "certificate", "certificate %s, key %s and %s: %w: copy all three from where exanetctl host init was run, or remove certificate and key and make new ones by exanetctl host add; if only the time is wrong, set the clock",
			certFile, keyFile, caFile, err)
	}
	return &handover.Credentials{Certificate: string(cert), Key: string(key), CA: string(ca)}, nil
}
