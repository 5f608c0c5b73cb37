package daemon

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/exanet/pfd/link"
)

// selfSigned returns a certificate that ends at a time, as PEM.
func selfSigned(t *testing.T, end time.Time) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: end.Add(-time.Hour), NotAfter: end}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// The certificate that ends first counts, but of an authority's the last. pfd warns 30, 7 and 1 days before, and
// at the end, each once, and at once of one that ends earlier than the first of these.
func TestExpiry(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	in := func(days int) time.Time { return now.Add(time.Duration(days) * day) }
	c := &link.Credentials{
		Certificate: append(selfSigned(t, in(100)), selfSigned(t, in(50))...),
		CA:          append(selfSigned(t, in(10)), selfSigned(t, in(200))...),
	}
	if e := expiryOf("a", c); !e.at.Equal(in(50)) || e.whose != "of host a" {
		t.Errorf("ends at %v, %q", e.at, e.whose)
	}
	c.CA = selfSigned(t, in(40))
	if e := expiryOf("a", c); !e.at.Equal(in(40)) || e.whose != "of the authority" {
		t.Errorf("ends at %v, %q", e.at, e.whose)
	}
	if e := expiryOf("a", &link.Credentials{Certificate: selfSigned(t, in(5)), CA: selfSigned(t, in(5))}); e.whose != "of the authority" {
		t.Errorf("both end, and %q is named", e.whose)
	}
	for _, begin := range []int{0, 35} { // days after now
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, nil))
		e := expiryOf("a", c)
		var lines []int // day of each
		for d := begin; d < 60; d++ {
			out.Reset()
			for range 3 {
				e.warn(in(d), log)
			}
			for range strings.Count(out.String(), "\n") {
				lines = append(lines, d)
			}
			if out.Len() > 0 && !strings.Contains(out.String(), "docs/hosts.md") {
				t.Errorf("no remedy: %s", out.String())
			}
		}
		want := map[int][]int{0: {10, 33, 39, 40}, 35: {35, 39, 40}}[begin]
		if len(lines) != len(want) || lines[0] != want[0] || lines[len(lines)-1] != want[len(want)-1] {
			t.Errorf("from day %d on: warned at %v, want %v", begin, lines, want)
		}
		none := expiryOf("a", nil)
		if none.warn(in(begin), log); !none.at.IsZero() {
			t.Error("links without TLS end")
		}
	}
}
