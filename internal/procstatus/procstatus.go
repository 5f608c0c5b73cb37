// Package procstatus parses the lines of /proc/PID/status (proc_pid_status(5)) and of similar
// files.
package procstatus

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrNone reports that a line is missing. A process that has ended has no memory, and no lines
// about it.
var ErrNone = errors.New("no such line in /proc/PID/status")

// Field returns the value of a line "name:\tvalue", without surrounding space.
func Field(status []byte, name string) (string, bool) {
	for line := range bytes.Lines(status) {
		if key, v, ok := bytes.Cut(line, []byte(":")); ok && string(key) == name {
			return string(bytes.TrimSpace(v)), true
		}
	}
	return "", false
}

// Mask returns a bit mask: capabilities, or signals.
func Mask(status []byte, name string) (uint64, error) {
	v, ok := Field(status, name)
	if !ok {
		return 0, fmt.Errorf("%s: %w", name, ErrNone)
	}
	n, err := strconv.ParseUint(v, 16, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return n, nil
}

// Bytes returns the sum of the sizes, given in kB, of the named lines.
func Bytes(status []byte, names ...string) (sum int64, err error) {
	for _, name := range names {
		v, ok := Field(status, name)
		if !ok {
			return 0, fmt.Errorf("%s: %w", name, ErrNone)
		}
		kilobytes, ok := strings.CutSuffix(v, " kB")
		n, err := strconv.ParseUint(kilobytes, 10, 50) // so the sum of eight does not overflow
		if !ok || err != nil {
			return 0, fmt.Errorf("%s reads %q", name, v)
		}
		sum += int64(n) << 10
	}
	return sum, nil
}
