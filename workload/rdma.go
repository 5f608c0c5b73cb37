package workload

import (
	"context"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/pagein"
	"github.com/exanet/pfd/rdma"
)

// rdmaEndpoint implements endpoint with package rdma.
type rdmaEndpoint struct{ ep *rdma.Endpoint }

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
	return rdmaEndpoint{ep}, nil
}

func (e rdmaEndpoint) rdma() *rdma.Endpoint { return e.ep }
func (e rdmaEndpoint) slot() int            { return e.ep.Info().Slot }
func (e rdmaEndpoint) close() error         { return e.ep.Close() }

// pages returns the pages that pfd does not count: under method touch the process sends the
// requests for retransmission.
func (e rdmaEndpoint) pages() uint64 {
	if e.ep.Info().Method != rdma.MethodTouch {
		return 0
	}
	return e.ep.Stats().NumPageFaultPages
}

func (e rdmaEndpoint) export(va device.VA, size uint64) (rdma.Remote, error) {
	// A transfer of 0 bytes is an error of the initiator, where it is refused.
	return e.ep.ExportVA(va, max(size, 1))
}

func (e rdmaEndpoint) start(va device.VA, size uint64, t target, offset uint64, read bool) (transfer, error) {
	if read {
		return e.ep.Read(context.Background(), rdma.ReadRequest{DstVA: va, Size: size, Src: t.Remote, Offset: offset})
	}
	return e.ep.Write(context.Background(), rdma.WriteRequest{SrcVA: va, Size: size, Dst: t.Remote, Offset: offset, Urgent: t.Urgent})
}
