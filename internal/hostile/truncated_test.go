package hostile

import (
	"fmt"
	"strings"
	"testing"

	"github.com/exanet/pfd/device"
)

// There are no pages behind the end of a file: a transfer into or out of it fails with the code
// and text of that cause, which only the fail bit produces (the limit of retransmissions has
// other codes). Nothing else of the process is affected.
func TestFileThatEndsTooEarly(t *testing.T) {
	// A pfd without capabilities cannot determine the size of the file.
	for _, who := range []uint32{0, 3100} {
		t.Run(fmt.Sprintf("uid %d", who), func(t *testing.T) {
			w := start
			if who != 0 {
				w = func(t *testing.T, _ ...string) *world { return unprivileged(t, who, place{}) }
			}
			fileThatEndsTooEarly(t, w(t), who)
		})
	}
}

func fileThatEndsTooEarly(t *testing.T, w *world, uid uint32) {
	const size = 1 << 20
	kinds := map[string][]string{
		"gup": {"memfd", "shared file", "private file"}, "touch": {"memfd", "private file"},
		"populate": {"memfd", "private file"}, "uffd": {"registered memfd", "memfd"},
	}
	for _, method := range methods {
		for i, kind := range kinds[method] {
			policy := []string{"p1", "p4", "pa"}[i]
			t.Run(fmt.Sprintf("%s/%s/%s", method, kind, policy), func(t *testing.T) {
				w.during(t)
				group := "short-" + method + policy
				p := pair{
					w.attach("initiator", attachOrder{UID: uid, Group: group, Method: method, Policy: policy}),
					w.attach("target", attachOrder{UID: uid, Group: group, Method: method, Policy: policy, Node: 1}),
				}
				defer p.kill()
				short := func(side *proxy, id string, seed uint64) reply {
					r, err := side.do(order{Op: "buffer", ID: id, Kind: kind, Size: size, Seed: seed, Path: w.dir})
					if err != nil {
						t.Fatal(err)
					}
					if uid != 0 && strings.Contains(r.Err, "no userfaultfd for this user") {
						t.Skip(r.Err)
					} else if r.Err != "" {
						t.Fatal(r.Err)
					}
					return r
				}
				if uid != 0 && method == "uffd" {
					// Its own buffers need the setting as well.
					if r, err := p.to.do(order{Op: "buffer", ID: "probe", Size: 4096}); err != nil || r.Err != "" {
						t.Skip(r.Err, err)
					}
				}
				dst := short(p.to, "dst", 0)
				plain := p.to.buffer("plain", "anonymous", size, 0)
				p.from.buffer("src", "anonymous", size, 5)
				p.to.must(order{Op: "truncate", ID: "dst", Off: size/2 + 1})
				p.from.write("to", "src", dst.Remote, size)
				p.refused("to")
				short(p.from, "file", 6)
				p.from.must(order{Op: "truncate", ID: "file", Off: size / 2})
				p.from.write("from", "file", plain.Remote, size)
				p.refused("from")
				p.from.write("half", "src", dst.Remote, size/2)
				p.from.arrives("half")
				p.to.holds("dst", 5, 0, size/2)
				p.from.write("whole", "src", plain.Remote, size)
				p.from.arrives("whole")
				p.to.holds("plain", 5, 0, size)
			})
		}
	}
}

// refused waits for a transfer that must fail because a page does not exist.
func (p pair) refused(id string) {
	p.from.t.Helper()
	r := p.from.wait(id)
	if r.Done || r.Code != device.StatusDecode || !strings.Contains(r.Text, "beyond the end of the mapped file") {
		p.from.t.Errorf("transfer %s: %+v, want code %d and the end of the file", id, r, device.StatusDecode)
	}
}
