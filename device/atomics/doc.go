// Package atomics defines the messages between a thread and the GSAS unit of a node
// (docs/spec/gsas.md; 003 §2): the addresses of the global address space, the operations, requests
// and answers.
//
// Decoders take any words, since threads are hostile. A request's thread, protection ID and tag
// are wired: the packetizer of the thread stamps them.
//
// docs/papers.md lists the papers that comments cite by number.
package atomics
