package api

import (
	"context"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
)

// viewGSAS shows the trees of threads, each to its user.
func (srv *Server) viewGSAS(ctx context.Context, q *query) (any, error) {
	r := control.GSAS{Version: control.Version, SeesAll: q.peer.All, Trees: []control.GSASTree{}}
	looks, err := srv.looks.threads.look(ctx, srv.host, q, func(n *session.Node) (map[atomics.Thread]holder, error) {
		holders := map[atomics.Thread]holder{}
		for slot := range device.Slots {
			for _, id := range n.Threads(slot) {
				holders[id] = holder{slot, n.Tenant(slot).PID}
			}
		}
		return holders, nil
	})
	if err != nil || len(looks) == 0 {
		return r, err
	}
	holders := map[atomics.Thread]holder{}
	for _, l := range looks {
		for id, h := range l.v {
			holders[id] = h
		}
	}
	for _, t := range srv.host.Trees() {
		if !q.peer.sees(t.UID) {
			continue
		}
		root := atomics.Thread(t.Protection)
		v := control.GSASTree{
			Node: int(root.Node()), Interface: root.Interface(), Protection: control.Hex(t.Protection), Owner: t.Owner, UID: t.UID,
			State: control.TreeLive, Threads: []control.GSASThread{}, Areas: []control.GSASArea{},
		}
		if t.Ended {
			v.State = control.TreeEnded
		}
		for _, id := range t.Threads {
			h, ok := holders[id]
			if !ok { // it is just being made, or has just ended
				h.slot = -1
			}
			v.Threads = append(v.Threads, control.GSASThread{Node: int(id.Node()), Interface: id.Interface(), Thread: control.Hex(id), Slot: h.slot, PID: h.pid})
		}
		for _, a := range t.Areas {
			bytes := a.Pages * device.PageSize
			v.Areas = append(v.Areas, control.GSASArea{
				Node: int(a.Node), Address: control.Hex(atomics.At(a.Node, uint64(a.Region)*atomics.RegionSize)), Allocations: a.Runs, SizeBytes: bytes,
			})
			v.SizeBytes += bytes
		}
		r.Trees = append(r.Trees, v)
	}
	return r, nil
}
