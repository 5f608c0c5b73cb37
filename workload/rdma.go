package workload

import (
	"context"
	"errors"
)

// attachRDMA attaches by package rdma.
func attachRDMA(context.Context, attachment) (endpoint, error) {
	return nil, errors.New("package rdma is not there yet")
}
