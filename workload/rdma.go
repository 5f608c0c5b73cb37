package workload

import (
	"context"
	"fmt"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/pagein"
	"github.com/exanet/pfd/rdma"
)

// rdmaEndpoint is an attachment by package rdma.
type rdmaEndpoint struct {
	ep *rdma.Endpoint
}

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
		AcceptGroup: true, // both test processes may be on one node
	})
	if err != nil {
		return nil, err
	}
	return &rdmaEndpoint{ep}, nil
}

func (e *rdmaEndpoint) slot() int     { return e.ep.Info().Slot }
func (e *rdmaEndpoint) pages() uint64 { return e.ep.Stats().NumPageFaultPages }
func (e *rdmaEndpoint) close() error  { return e.ep.Close() }

func (e *rdmaEndpoint) export(va device.VA, size uint64) (string, error) {
	// A transfer of 0 bytes is the initiator's mistake to hear of.
	r, err := e.ep.ExportVA(va, max(size, 1))
	if err != nil {
		return "", err
	}
	return r.String(), nil
}

func (e *rdmaEndpoint) write(va device.VA, size uint64, remote string) (transfer, error) {
	dst, err := rdma.ParseRemote(remote)
	if err != nil {
		return nil, fmt.Errorf("the target's buffer: %w", err)
	}
	t, err := e.ep.Write(context.Background(), rdma.WriteRequest{SrcVA: va, Size: size, Dst: dst})
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
