package session_test

import (
	"context"
	"testing"

	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/gsas"
	"github.com/exanet/pfd/rdma"
)

// lying is a machine whose devices leave operations to pfd that no thread has asked for.
type lying struct {
	session.Machine
	session.GSAS
	call    func(node int, c atomics.Call)
	answers chan atomics.Status
}

// lie is the id of such an operation. The units of the machine do not use it.
const lie = 1<<32 - 1

func (l *lying) Features() session.Features {
	f := l.Machine.Features()
	l.GSAS, f.GSAS = f.GSAS, l
	return f
}

func (l *lying) OnCall(f func(node int, c atomics.Call)) {
	l.call = f
	l.GSAS.OnCall(f)
}

func (l *lying) AnswerCall(node int, id uint32, s atomics.Status, values ...uint64) {
	if id == lie {
		l.answers <- s
		return
	}
	l.GSAS.AnswerCall(node, id, s, values...)
}

// A device that lies about trees gets no page of a tree on another node, frees none of another tree, and makes
// no tree.
func TestDeviceThatLiesAboutTrees(t *testing.T) {
	machine := &lying{answers: make(chan atomics.Status, 1)}
	h, socket := start(t, func(m session.Machine) session.Machine {
		machine.Machine = m
		return machine
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var threads [2]*gsas.Thread // of a tree each
	var words [2]gsas.Address   // on each node, of the first tree
	for i := range threads {
		ep, err := rdma.Attach(ctx, rdma.Options{Socket: socket, Threads: true})
		if err != nil {
			t.Fatal(err)
		}
		defer ep.Close()
		if threads[i], err = gsas.NewThread(ep); err != nil {
			t.Fatal(err)
		}
	}
	for i := range words {
		var err error
		if words[i], err = threads[0].Alloc(ctx, device.NodeID(i), 1, 0); err == nil {
			err = threads[0].Store64(ctx, words[i], 7)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	first, second := atomics.Protection(threads[0].Tree()), atomics.Protection(threads[1].Tree())
	none := atomics.Protection(atomics.ThreadOf(1, device.MailboxThread+9))
	for _, c := range []struct {
		tree atomics.Protection
		op   atomics.Op
		at   gsas.Address
		args [atomics.MaxArgs]uint64
		want atomics.Status
	}{
		{none, atomics.Alloc, atomics.At(1, 0), [atomics.MaxArgs]uint64{1}, atomics.Gone},
		{none, atomics.Free, words[1], [atomics.MaxArgs]uint64{}, atomics.Gone},
		{none, atomics.Alive, atomics.At(1, 0), [atomics.MaxArgs]uint64{uint64(threads[0].ID())}, atomics.OK}, // it is not alive
		{atomics.IDMask, atomics.Alloc, atomics.At(1, 0), [atomics.MaxArgs]uint64{1}, atomics.Gone},
		{first, atomics.Alloc, atomics.At(0, 0), [atomics.MaxArgs]uint64{1}, atomics.BadAddress},
		{first, atomics.Free, words[0], [atomics.MaxArgs]uint64{}, atomics.BadAddress},
		{first, atomics.Alloc, atomics.At(1, 0), [atomics.MaxArgs]uint64{1 << 60}, atomics.NoRoom},
		{first, atomics.Alloc, atomics.At(1, 0), [atomics.MaxArgs]uint64{1<<20/device.PageSize + 1}, atomics.NoRoom},
		{first, atomics.Read64, words[0], [atomics.MaxArgs]uint64{}, atomics.BadRequest},
		{first, atomics.Write64, words[1], [atomics.MaxArgs]uint64{1}, atomics.BadRequest},
		{first, atomics.Spawn, words[1], [atomics.MaxArgs]uint64{1}, atomics.BadRequest},
		{first, atomics.Free, words[1] + 8, [atomics.MaxArgs]uint64{}, atomics.BadAddress},
		{second, atomics.Free, words[1], [atomics.MaxArgs]uint64{}, atomics.Denied},
		{second, atomics.Alive, atomics.At(1, 0), [atomics.MaxArgs]uint64{1 << 60}, atomics.OK},
	} {
		err := h.Own(ctx, h.Nodes()[1], func() error {
			machine.call(1, atomics.Call{ID: lie, Request: atomics.Request{
				Thread: atomics.Thread(threads[0].ID()), Protection: c.tree, Op: c.op, Address: c.at, Args: c.args,
			}})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-machine.answers:
			if got != c.want {
				t.Errorf("%v of tree %#x at %v: %v, want %v", c.op, uint32(c.tree), c.at, got, c.want)
			}
		case <-ctx.Done():
			t.Fatalf("%v of tree %#x at %v is not answered", c.op, uint32(c.tree), c.at)
		}
		for _, at := range words {
			if v, err := threads[0].FetchAdd(ctx, at, 0); err != nil || v != 7 {
				t.Fatalf("after %v of tree %#x the word at %v is %d, %v", c.op, uint32(c.tree), at, v, err)
			}
		}
	}
	if trees := h.Trees(); len(trees) != 2 {
		t.Errorf("%d trees", len(trees))
	}
}
