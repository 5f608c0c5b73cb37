// Package netns makes networks of a few machines on this one: each machine is a network
// namespace, and each pair of machines has a cable of its own, which can be cut. Nothing stays
// behind: a namespace ends with the process that made it.
package netns
