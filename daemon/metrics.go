package daemon

import (
	"bytes"
	"context"
	"fmt"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/proc"
)

// metrics answers /metrics in Prometheus' text format 0.0.4: every counter of
// every node, the pinned bytes and the number of domains.
func (d *Daemon) metrics(ctx context.Context) ([]byte, error) {
	byName := map[string][]control.Counter{}
	var names []string
	var processes []*proc.Process
	domains := make([]int, len(d.nodes))
	err := d.each(ctx, &query{node: control.AllNodes}, func(n *node) error {
		list, err := n.counters()
		for _, c := range list {
			if byName[c.Name] == nil {
				names = append(names, c.Name)
			}
			byName[c.Name] = append(byName[c.Name], c)
		}
		domains[n.index] = len(n.domains.Domains())
		processes = append(processes, n.processes()...)
		return err
	})
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	head := func(name, kind, help string) {
		fmt.Fprintf(&b, "# HELP exanet_%s %s\n# TYPE exanet_%s %s\n", name, help, name, kind)
	}
	head("pinned_bytes", "gauge", "memory locked or pinned in pfd and in the attached processes, -1 unknown")
	fmt.Fprintf(&b, "exanet_pinned_bytes %d\n", d.pinned(processes))
	head("domains", "gauge", "protection domains in use")
	for i, n := range domains {
		fmt.Fprintf(&b, "exanet_domains{node=\"%d\"} %d\n", i, n)
	}
	head(control.CounterRefused, "counter", "attachments refused")
	fmt.Fprintf(&b, "exanet_%s %d\n", control.CounterRefused, d.refused.Load())
	for _, name := range names {
		head(name, "counter", byName[name][0].Help)
		for _, c := range byName[name] {
			fmt.Fprintf(&b, "exanet_%s{node=\"%d\"} %d\n", name, c.Node, c.Value)
		}
	}
	return b.Bytes(), nil
}
