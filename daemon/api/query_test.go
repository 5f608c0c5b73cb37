package api

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"testing"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
)

// A request is refused, or all of its values are within their bounds.
func FuzzQuery(f *testing.F) {
	f.Add("GET", "node=1&n=5")
	f.Add("POST", "node=0&slot=3&pdid=0x10")
	f.Add("GET", "window=pl&window=smmu")
	f.Add("GET", "n=%zz;slot=-1")
	nodes := []int{5, 6}
	f.Fuzz(func(t *testing.T, method, query string) {
		ctx := WithPeer(context.Background(), Peer{UID: 1})
		r := (&http.Request{Method: method, URL: &url.URL{Path: "/", RawQuery: query}}).WithContext(ctx)
		for _, e := range []Endpoint{
			{Keys: []string{"node", "n", "window"}},
			{Keys: []string{"node", "slot", "pdid"}, Post: true},
			{},
		} {
			q, err := parse(r, e.Keys, e.Post, nodes)
			if err != nil {
				var answer *failure
				if !errors.As(err, &answer) || answer.status < 400 || answer.status > 499 {
					t.Errorf("%s %q: %v", method, query, err)
				}
				continue
			}
			if q.node != control.AllNodes && q.node != 5 && q.node != 6 || q.n < 1 || q.n > control.MaxFaults || q.slot < -1 || q.slot >= device.Slots {
				t.Errorf("%s %q: %+v", method, query, q)
			}
			if e.Post && (method != http.MethodPost || q.slot < 0 || q.pdid == 0) {
				t.Errorf("%s %q changes something: %+v", method, query, q)
			}
		}
	})
}
