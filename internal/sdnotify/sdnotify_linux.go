// Package sdnotify sends a program's state to its service manager (sd_notify(3)).
package sdnotify

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// sendTime bounds the wait for a service manager that does not read. Defined by this project.
const sendTime = time.Second

// Send sends lines like READY=1. Without NOTIFY_SOCKET it does nothing.
func Send(state string) error {
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
	if err := c.SetWriteDeadline(time.Now().Add(sendTime)); err != nil {
		return fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	if _, err := c.Write([]byte(state)); err != nil {
		return fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	return nil
}

// Reloading returns what a service of Type=notify-reload sends when it begins to reload
// (sd_notify(3), RELOADING).
func Reloading() string {
	var now unix.Timespec
	// CLOCK_MONOTONIC cannot fail.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000)
}

// Watchdog returns the interval within which the service manager must be notified, 0: none
// (sd_watchdog_enabled(3)).
func Watchdog(getenv func(string) string) time.Duration {
	if pid := getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	us, err := strconv.ParseInt(getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || us <= 0 || getenv("NOTIFY_SOCKET") == "" {
		return 0
	}
	return time.Duration(us) * time.Microsecond
}
