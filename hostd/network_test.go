package main

import (
	"net/netip"
	"testing"
)

// The addresses of a network usually belong to one user: they count as one.
func TestNetworks(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"192.0.2.1", "192.0.2.1", true}, {"192.0.2.1", "192.0.2.2", false},
		{"127.0.0.1", "127.9.8.7", true},
		{"2001:db8::1", "2001:db8::ffff:1", true}, {"2001:db8::1", "2001:db8:0:1::1", false}, {"::1", "::2", true},
	} {
		if got := network(netip.MustParseAddr(c.a)) == network(netip.MustParseAddr(c.b)); got != c.same {
			t.Errorf("%s and %s are the same network: %v", c.a, c.b, got)
		}
	}
}
