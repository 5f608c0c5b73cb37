// Package uio drives a device through Linux's UIO: its windows by loads and stores.
// The device is a PCI function of uio_pci_generic or, on a board, a node of the
// device tree that uio_pdrv_genirq has. It knows nothing of what the device is.
//
// UIO maps no memory for a device and gives none of its MSI-X vectors: the device
// reaches all memory, by physical addresses, and whoever drives it polls.
//
// Files are cited as Documentation/driver-api/uio-howto.rst and
// Documentation/ABI/testing/sysfs-bus-pci.
package uio
