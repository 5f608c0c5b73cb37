// Package uio drives a device through Linux's UIO: its windows by loads and stores. The device
// is a PCI function of uio_pci_generic or, on a board, a node of the device tree with
// uio_pdrv_genirq. The package is independent of the kind of device.
//
// UIO maps no memory for a device and provides none of its MSI-X vectors: the device accesses
// all memory by physical addresses, and its driver must poll.
//
// Sources are cited as Documentation/driver-api/uio-howto.rst and
// Documentation/ABI/testing/sysfs-bus-pci.
package uio
