package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/vfio/kernel"
	"github.com/exanet/pfd/vfio/mediate"
)

// bindFlags are the flags of bind and unbind.
type bindFlags struct {
	all    bool
	wait   int
	driver string
}

func (a *app) bindCommand() *cobra.Command {
	f := bindFlags{}
	c := &cobra.Command{
		Use:   "bind [ADDRESS...]",
		Short: "Bind nodes to vfio-pci, so that pfd can drive them",
		Long: `bind unbinds PCI functions from their drivers and binds them to vfio-pci
(pfd --device vfio:ADDRESS), or with --driver uio_pci_generic to UIO (pfd
--device uio:ADDRESS). It prints the addresses. It needs root.`,
		Example: `  exanetctl bind 0000:01:00.0
  pfd --device vfio:0000:01:00.0`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.driver != kernel.Driver && f.driver != kernel.DriverUIO {
				return usagef("bind --driver %q: want %s or %s", f.driver, kernel.Driver, kernel.DriverUIO)
			}
			return a.bind(cmd.Context(), f, args, func(addr string) error { return kernel.Bind(addr, f.driver) })
		},
	}
	f.flags(c)
	c.Flags().StringVar(&f.driver, "driver", kernel.Driver, kernel.Driver+", or "+kernel.DriverUIO+" if there is no IOMMU")
	c.Flags().IntVar(&f.wait, "wait", 0, "with --all: wait until there are this many nodes")
	return c
}

func (a *app) unbindCommand() *cobra.Command {
	f := bindFlags{}
	c := &cobra.Command{
		Use:   "unbind [ADDRESS...]",
		Short: "Unbind nodes from vfio-pci or uio_pci_generic",
		Args:  cobra.ArbitraryArgs,
		RunE:  func(cmd *cobra.Command, args []string) error { return a.bind(cmd.Context(), f, args, kernel.Unbind) },
	}
	f.flags(c)
	return c
}

func (f *bindFlags) flags(c *cobra.Command) {
	c.Flags().BoolVar(&f.all, "all", false, "all nodes of this machine")
}

// look is the time between two scans for nodes. Defined by this project.
const look = 20 * time.Millisecond

func (a *app) bind(ctx context.Context, f bindFlags, addrs []string, do func(string) error) error {
	switch {
	case f.all && len(addrs) > 0:
		return usagef("want ADDRESS or --all, not both")
	case !f.all && len(addrs) == 0:
		return usagef("want the address of a PCI function, as 0000:01:00.0, or --all")
	}
	for _, addr := range addrs {
		if err := kernel.CheckAddress(addr); err != nil {
			return usagef("%w", err)
		}
	}
	for f.all {
		var err error
		if addrs, err = kernel.Find(mediate.PCIVendor, mediate.PCIDevice); err != nil {
			return err
		}
		if len(addrs) >= f.wait {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(look):
		}
	}
	if len(addrs) == 0 {
		return fmt.Errorf("this machine has no node: no PCI device %04x:%04x", mediate.PCIVendor, mediate.PCIDevice)
	}
	for _, addr := range addrs {
		if err := do(addr); err != nil {
			return err
		}
		if err := a.println(addr); err != nil {
			return err
		}
	}
	return nil
}
