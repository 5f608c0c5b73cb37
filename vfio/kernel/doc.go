// Package kernel drives a PCI function through Linux's VFIO: its BARs by loads and
// stores, its memory through the IOMMU, its vectors by eventfds. It prefers
// iommufd and the device's own file; where the kernel has not both, it takes the
// group and a container of type 1. It knows nothing of what the device is.
//
// Constants and structures are cited as linux/vfio.h and linux/iommufd.h.
//
// Mapping pins: the IOMMU has no page faults for this device. Whoever maps decides
// how much.
package kernel
