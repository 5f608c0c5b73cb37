//go:build !linux

package sockets

// Why returns "": pfd runs on Linux.
func Why(string, error) string { return "" }
