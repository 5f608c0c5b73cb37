// Package kernel drives a PCI function through Linux's VFIO: its BARs by loads and stores, its
// memory through the IOMMU, its vectors by eventfds. It prefers iommufd with the device file;
// if the kernel lacks one of them it uses the group and a container of type 1. It is
// independent of the kind of device.
//
// Constants and structures are cited as linux/vfio.h and linux/iommufd.h.
//
// Mapping pins memory, because the IOMMU has no page faults for this device. The caller decides
// how much to map.
package kernel
