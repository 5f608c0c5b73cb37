package workload

import (
	"context"
	"errors"
	"fmt"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/pagein"
	"github.com/exanet/pfd/rdma"
)

// rdmaEndpoint is an attachment by package rdma.
type rdmaEndpoint struct {
	ep *rdma.Endpoint
	// found has the other process's buffers by their names: an application parses
	// them once, and not as a part of each transfer.
	found map[string]rdma.Remote
}

// maxFound bounds found.
const maxFound = 64

func attachRDMA(ctx context.Context, a attachment) (endpoint, error) {
	method, err := pagein.ParseMethod(a.Method)
	if err != nil {
		return nil, err
	}
	policy, err := pagein.ParsePolicy(a.Policy)
	if err != nil {
		return nil, err
	}
	ep, err := rdma.Attach(ctx, rdma.Options{
		Socket: a.Socket, Node: device.NodeID(a.Node), Group: a.Group, Method: method, Policy: policy,
		Trust:       a.Trust,
		AcceptGroup: true, // both test processes may be on one node
	})
	if err != nil {
		return nil, err
	}
	return &rdmaEndpoint{ep: ep, found: make(map[string]rdma.Remote)}, nil
}

func (e *rdmaEndpoint) slot() int { return e.ep.Info().Slot }

// pages counts what pfd does not: under method touch the process sends the
// requests for retransmission.
func (e *rdmaEndpoint) pages() uint64 {
	if e.ep.Info().Method != rdma.MethodTouch {
		return 0
	}
	return e.ep.Stats().NumPageFaultPages
}

// register implements registrar: under method uffd.
func (e *rdmaEndpoint) register(area []byte) (func() error, error) {
	if e.ep.Info().Method != rdma.MethodUFFD {
		return nil, nil
	}
	if err := e.ep.Register(area); err != nil {
		return nil, err
	}
	return func() error {
		err := e.ep.Unregister(area)
		if errors.Is(err, rdma.ErrGone) || errors.Is(err, rdma.ErrClosed) {
			return nil // what is over has let it go
		}
		return err
	}, nil
}

func (e *rdmaEndpoint) close() error { return e.ep.Close() }

func (e *rdmaEndpoint) sharer() sharer {
	if e.ep.Info().SVA() {
		return nil
	}
	return e
}

func (e *rdmaEndpoint) page() uint64 { return e.ep.Info().Page }

func (e *rdmaEndpoint) memory(size, page uint64) (int, error) { return rdma.MakeMemory(size, page) }

func (e *rdmaEndpoint) share(va device.VA, size uint64, fd int, offset uint64, writable bool) error {
	return e.ep.Share(va, size, fd, offset, writable)
}

// unshare takes memory back; an attachment that is over has let it go.
func (e *rdmaEndpoint) unshare(va device.VA, size uint64) error {
	err := e.ep.Unshare(va, size)
	if errors.Is(err, rdma.ErrGone) || errors.Is(err, rdma.ErrClosed) {
		return nil
	}
	return err
}

func (e *rdmaEndpoint) export(va device.VA, size uint64) (string, error) {
	// A transfer of 0 bytes is the initiator's mistake, and refused there.
	r, err := e.ep.ExportVA(va, max(size, 1))
	if err != nil {
		return "", err
	}
	return r.String(), nil
}

// find gives the buffer that the other process has named so.
func (e *rdmaEndpoint) find(name string) (rdma.Remote, error) {
	if r, ok := e.found[name]; ok {
		return r, nil
	}
	r, err := rdma.ParseRemote(name)
	if err != nil {
		return r, fmt.Errorf("the target's buffer: %w", err)
	}
	if len(e.found) >= maxFound {
		clear(e.found)
	}
	e.found[name] = r
	return r, nil
}

// know implements endpoint.
func (e *rdmaEndpoint) know(name string) error {
	_, err := e.find(name)
	return err
}

func (e *rdmaEndpoint) write(va device.VA, size uint64, remote string) (transfer, error) {
	dst, err := e.find(remote)
	if err != nil {
		return nil, err
	}
	t, err := e.ep.Write(context.Background(), rdma.WriteRequest{SrcVA: va, Size: size, Dst: dst})
	if err != nil {
		return nil, err
	}
	return &rdmaTransfer{t}, nil
}

func (e *rdmaEndpoint) start(va device.VA, size uint64, remote string, offset uint64, read, urgent bool) (transfer, error) {
	r, err := e.find(remote)
	if err != nil {
		return nil, err
	}
	var t *rdma.Transfer
	if read {
		t, err = e.ep.Read(context.Background(), rdma.ReadRequest{DstVA: va, Size: size, Src: r, Offset: offset})
	} else {
		t, err = e.ep.Write(context.Background(), rdma.WriteRequest{SrcVA: va, Size: size, Dst: r, Offset: offset, Urgent: urgent})
	}
	if err != nil {
		return nil, err
	}
	return &rdmaTransfer{t}, nil
}

type rdmaTransfer struct {
	*rdma.Transfer
}

func (t *rdmaTransfer) poll() (bool, error) {
	if !t.Poll().Final() {
		return false, nil
	}
	return true, t.Err()
}

func (t *rdmaTransfer) wait(ctx context.Context) error { return t.Wait(ctx) }
func (t *rdmaTransfer) abort() error                   { return t.Abort() }
