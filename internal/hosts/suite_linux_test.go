package hosts

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/internal/suite"
	"github.com/exanet/pfd/link"
	files "github.com/exanet/pfd/link/hosts"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/space/proc"
)

// linked is two engines of one node each, with a link between them, as one machine of the suite.
type linked struct {
	engines [2]*emu.Engine
}

// newLinked returns two engines whose link is up.
func newLinked(t *testing.T, bare bool) *linked {
	t.Helper()
	const cluster = "suite"
	ca, err := files.NewCA(cluster, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	caPEM, _, err := ca.PEM()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var list []link.Host
	for i := range device.NodeID(2) {
		list = append(list, link.Host{
			Name: names[i], Address: l.Addr().String(), Nodes: link.Range{First: i, Last: i},
			PDIDs: [2]device.PDID{device.PDID(0x100 * (i + 1)), device.PDID(0x100*(i+1) + 0xff)},
		})
	}
	ctx, cancel := context.WithCancel(context.Background())
	var workers sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		_ = l.Close()
		workers.Wait()
	})
	m := &linked{}
	var links [2]*link.Links
	for i, h := range list {
		links[i] = link.New(link.Config{Identity: link.Identity{Nodes: h.Nodes, PDIDs: h.PDIDs}})
		if m.engines[i], err = emu.New(emu.Config{Nodes: 1, Base: h.Nodes.First, Carrier: links[i], NoTXFIFO: bare}); err != nil {
			t.Fatal(err)
		}
		workers.Go(func() { _ = m.engines[i].Run(ctx) })
		workers.Go(func() { _ = links[i].Run(ctx, m.engines[i]) })
		cert, key, err := ca.Issue(h.Name, [2]device.NodeID{h.Nodes.First, h.Nodes.Last}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		table := link.Table{Cluster: cluster, Self: h.Name, Hosts: list, TLS: true, Credentials: &link.Credentials{Certificate: cert, Key: key, CA: caPEM}}
		if err := links[i].SetTable(table); err != nil {
			t.Fatal(err)
		}
	}
	workers.Go(func() { // as exanet-hostd does
		for {
			select {
			case <-ctx.Done():
				return
			case w := <-links[0].Wants():
				c, err := net.Dial("tcp", l.Addr().String())
				if err != nil {
					links[0].Failed(w.Host, false, err.Error())
					continue
				}
				links[0].Take(c, w.Host)
			}
		}
	})
	workers.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			links[1].Take(c, "")
		}
	})
	for i := range links {
		wait(t, fmt.Sprintf("link %d is up", i), func() bool { return links[i].Info()[0].State == link.Up })
	}
	return m
}

func (m *linked) Bus(n int) device.Bus      { return m.engines[n].Bus(0) }
func (m *linked) Space(n int) space.Machine { return m.engines[n].Space(0) }
func (m *linked) Now() int64                { return m.engines[0].Now() }

func (m *linked) Attach(node, slot int, pages *attach.Pages, wake int, p *proc.Process) error {
	done := make(chan error)
	m.Bus(node).Post(func() {
		done <- m.engines[node].Attach(0, slot, &emu.Attachment{Pages: pages, Wake: wake, Space: space.NewDirect(p, gup.New(p))})
	})
	return <-done
}

func (m *linked) Detach(node, slot int) {
	done := make(chan struct{})
	m.Bus(node).Post(func() { defer close(done); m.engines[node].Detach(0, slot) })
	<-done
}

// The fault suite, with a link between the nodes.
func TestFaultSuite(t *testing.T) {
	suite.Run(t, func(t *testing.T, bare bool) suite.Machine { return newLinked(t, bare) })
}
