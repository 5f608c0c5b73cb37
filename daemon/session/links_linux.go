package session

import (
	"fmt"

	"github.com/exanet/pfd/daemon/tree"
	"github.com/exanet/pfd/device/atomics"
)

// SetHosts says which other hosts there are. The trees of one that is not among them any more are lost.
func (d *Host) SetHosts(hosts []tree.Host) {
	if d.trees != nil {
		d.trees.do(d.trees.dir.SetHosts(hosts))
	}
}

// LinkChanged says that the link to another host came up or went down.
func (d *Host) LinkChanged(host tree.Host, up bool) {
	if d.trees != nil {
		d.trees.dir.Changed(host, up)
	}
}

// Told handles a message about trees of the pfd of another host. It does not wait.
func (d *Host) Told(host string, message []byte) {
	if d.trees == nil {
		return
	}
	m, err := tree.Decode(message)
	if err != nil {
		d.log.Debug("a message of another host's pfd", "host", host, "err", err) // it may send many
		return
	}
	d.trees.do(d.trees.dir.Told(host, m))
}

// May reports whether the threads of another host may use the pages of a tree. It does not wait.
func (d *Host) May(host string, p atomics.Protection) bool {
	return d.trees != nil && d.trees.dir.May(host, p)
}

// do does what the directory says about trees that have ended.
func (t *trees) do(e tree.Effects) {
	for _, p := range e.Ended {
		t.over(p)
	}
	for _, p := range e.Lost {
		t.d.log.Warn("a tree of GSAS threads is lost: the pfd of its root has ended, or its host is struck", "tree", fmt.Sprintf("%#x", uint32(p)))
		t.endThreadsOf(p)
	}
}

// endThreadsOf ends the threads of a lost tree.
func (t *trees) endThreadsOf(p atomics.Protection) {
	t.d.mu.Lock()
	defer t.d.mu.Unlock()
	for s := range t.d.live {
		s.n.bus.Post(func() {
			for i, id := range s.threads {
				if id != 0 && t.dir.Alive(id, p) {
					s.endThread(i)
					s.lost[i] = true
					s.pages.EndThread(i)
				}
			}
		})
	}
}
