// Package device is the contract between the driver and the hardware: the
// register windows with their offsets and bits, the page-fault FIFO entry, the
// channel descriptor, and the interfaces through which a driver reaches one
// node, whoever implements it (the emulated SoC in this process, a vfio-user
// server, kernel VFIO, a board's UIO).
//
// Sources are named as spec/FILE section, and behind them the papers: 000 the
// page-fault thesis, 001 the R5 firmware thesis, 002 the PART paper, 003 D3.7.
// "ours" marks what no paper gives.
//
// docs/papers.md has the papers that comments cite by number.
package device
