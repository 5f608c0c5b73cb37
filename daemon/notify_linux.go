package daemon

import (
	"fmt"
	"net"
	"os"
)

// notify tells the service manager about the daemon's state (sd_notify(3)):
// lines like READY=1. Without NOTIFY_SOCKET it does nothing.
func notify(state string) error {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil
	}
	// A name with @ in front is an abstract socket, here and in package net.
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	defer c.Close()
	if _, err := c.Write([]byte(state)); err != nil {
		return fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	return nil
}
