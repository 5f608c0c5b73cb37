package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

// remoteFaults is the number of faults over which messages averages. Defined by this project.
const remoteFaults = 64

// messages counts the messages and mapped pages that a fault of 4 KiB adds with a device in
// another process.
func (r *run) messages(d *pfd, t *Table) (err error) {
	ctx := r.ctx
	idle, err := d.metrics(ctx)
	if err != nil {
		return err
	}
	put := func(row string, v float64) { t.cell(row, "count").Samples = []float64{v} }
	put("bytes pinned by an idle pfd of two nodes", idle.sum("exanet_pinned_bytes"))
	put("KiB of its tables and queues, which the kernel's VFIO pins", idle.sum("exanet_window_tables_bytes")/1024)
	var ends [2]*rdma.Endpoint
	var bufs [2]*rdma.Buffer
	defer func() {
		for _, e := range ends {
			if e != nil {
				err = errors.Join(err, e.Close())
			}
		}
	}()
	const apart = 4 // pages from one fault to the next, so that no fault maps the next one's page
	for i := range ends {
		if ends[i], err = rdma.Attach(ctx, rdma.Options{
			Socket: d.process.Socket(), Node: device.NodeID(i), Group: "remote", Method: rdma.MethodGUP, Policy: rdma.PolicyPIO,
		}); err != nil {
			return err
		}
		if bufs[i], err = ends[i].Alloc((1 + apart*remoteFaults) * device.PageSize); err != nil {
			return err
		}
	}
	bufs[0].Bytes()[0] = 1
	write := func(page int) error {
		to, err := ends[1].ExportVA(bufs[1].VA()+device.VA(page)<<device.PageShift, device.PageSize)
		if err != nil {
			return err
		}
		defer ends[1].Unexport(to)
		t, err := ends[0].Write(ctx, rdma.WriteRequest{Src: bufs[0].Bytes()[:device.PageSize], Dst: to})
		if err == nil {
			err = t.Wait(ctx)
		}
		return err
	}
	// each returns the messages sent and awaited and the pages mapped, per transfer.
	each := func() (sent, awaited, mapped float64, err error) {
		if err := write(0); err != nil { // so that the source is mapped
			return 0, 0, 0, err
		}
		before, err := d.metrics(ctx)
		if err != nil {
			return 0, 0, 0, err
		}
		for i := range remoteFaults {
			if err := write(1 + apart*i); err != nil {
				return 0, 0, 0, err
			}
		}
		after, err := d.metrics(ctx)
		since := func(name string) float64 { return (after.sum(name) - before.sum(name)) / remoteFaults }
		return since("exanet_device_messages_total"), since("exanet_device_messages_awaited_total"), since("exanet_window_mapped_bytes") / device.PageSize, err
	}
	sent, awaited, mapped, err := each()
	if err != nil {
		return err
	}
	sentThere, awaitedThere, mappedThere, err := each()
	if err != nil {
		return err
	}
	if mappedThere != 0 {
		return fmt.Errorf("a write into a present page mapped %.2f pages, want 0", mappedThere)
	}
	put("messages that a fault adds", sent-sentThere)
	put("those of them that are awaited", awaited-awaitedThere)
	put("further pages that a fault maps", mapped-1)
	return nil
}

// metrics are a pfd's metrics by name and labels.
type metrics map[string]float64

func (d *pfd) metrics(ctx context.Context) (metrics, error) {
	text, err := d.client.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	m := metrics{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if v, err := strconv.ParseFloat(value, 64); ok && err == nil {
			m[name] = v
		}
	}
	return m, nil
}

// sum returns the sum of a metric over its labels.
func (m metrics) sum(name string) (sum float64) {
	for k, v := range m {
		if k == name || strings.HasPrefix(k, name+"{") {
			sum += v
		}
	}
	return sum
}
