//go:build !linux

package sockets

// Why says nothing: pfd runs on Linux.
func Why(string, error) string { return "" }
