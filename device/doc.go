// Package device is the contract between the driver and the hardware: the register windows with
// their offsets and bits, the page-fault FIFO entry, the channel descriptor, and the interfaces
// through which a driver reaches one node, whatever implements it (the emulated SoC in this
// process, a vfio-user server, kernel VFIO, a board's UIO).
//
// Sources are cited as spec/FILE section, followed by the papers: 000 the page-fault thesis, 001
// the R5 firmware thesis, 002 the PART paper, 003 D3.7. "Defined by this
// project" marks values that no paper gives.
//
// docs/papers.md lists the papers that comments cite by number.
package device
