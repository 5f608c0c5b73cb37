package proc

import "github.com/exanet/pfd/device"

// Mapping is one mapping of a process: a range of addresses with the same rights and backing.
type Mapping struct {
	Start, End device.VA // End is the first address after it
	Read       bool
	Write      bool
	Exec       bool
	Shared     bool   // MAP_SHARED; false: private, copied on write
	File       bool   // backed by a file; memfds and shared anonymous memory are
	Offset     uint64 // bytes from the start of the file, 0 without one
}

// Permits reports whether the mapping permits a write (write) or a read.
func (m *Mapping) Permits(write bool) bool {
	if write {
		return m.Write
	}
	return m.Read
}

// Contains reports whether va lies in the mapping.
func (m *Mapping) Contains(va device.VA) bool { return m.Start <= va && va < m.End }

// Clip returns how many of the pages from va on lie inside the mapping, 0 if va does not.
func (m *Mapping) Clip(va device.VA, pages int) int {
	if !m.Contains(va) {
		return 0
	}
	in := uint64(m.End-va.Page()) >> device.PageShift
	if in < uint64(pages) {
		return int(in)
	}
	return pages
}

// mapsLine parses the first line of b, a piece of /proc/PID/maps (proc(5)):
//
//	00400000-00452000 r-xp 00000000 08:02 173521 /usr/bin/dbus-daemon
//
// It returns the mapping and the length of the line, newline included. The length is 0 if b holds
// no whole line; the mapping is empty if the line has another form.
func mapsLine(b []byte) (m Mapping, n int) {
	for n < len(b) && b[n] != '\n' {
		n++
	}
	if n == len(b) {
		return Mapping{}, 0
	}
	line := b[:n]
	n++
	start, line := hexField(line, '-')
	end, line := hexField(line, ' ')
	if line == nil || start >= end || len(line) < 5 || line[4] != ' ' {
		return Mapping{}, n
	}
	m = Mapping{
		Start:  device.VA(start),
		End:    device.VA(end),
		Read:   line[0] == 'r',
		Write:  line[1] == 'w',
		Exec:   line[2] == 'x',
		Shared: line[3] == 's',
	}
	offset, line := hexField(line[5:], ' ')
	major, line := hexField(line, ':')
	minor, line := hexField(line, ' ')
	if line == nil {
		return Mapping{}, n
	}
	// Without a file the kernel prints device 00:00 and inode 0. A memfd has an inode and a minor
	// number.
	m.File = major != 0 || minor != 0 || (len(line) > 0 && line[0] != '0')
	if m.File {
		m.Offset = offset
	}
	return m, n
}

// hexField parses a hexadecimal number that ends at the byte end. It returns the number and the
// rest after end, or nil if there is no such field. A nil line stays nil.
func hexField(line []byte, end byte) (uint64, []byte) {
	var v uint64
	for i, c := range line {
		switch {
		case c == end && i > 0:
			return v, line[i+1:]
		case i == 16:
			return 0, nil
		case '0' <= c && c <= '9':
			v = v<<4 | uint64(c-'0')
		case 'a' <= c && c <= 'f':
			v = v<<4 | uint64(c-'a'+10)
		default:
			return 0, nil
		}
	}
	return 0, nil
}
