package user

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// maxVersionData bounds the JSON text of a VERSION message; it is defined by this project. The
// known capabilities take some 200 bytes.
const maxVersionData = 64 << 10

// Capabilities are the capabilities of one side of a connection (spec, "VFIO_USER_VERSION"). A
// nil pointer is a value that the sender omitted.
type Capabilities struct {
	MaxFDs      *uint64     `json:"max_msg_fds,omitempty"`        // descriptors a message to the sender may carry
	MaxTransfer *uint64     `json:"max_data_xfer_size,omitempty"` // bytes of data in one message to the sender
	MaxMaps     *uint64     `json:"max_dma_maps,omitempty"`       // DMA mappings at one time
	PageSizes   *uint64     `json:"pgsizes,omitempty"`            // page sizes of DMA mappings, or'ed
	Twin        *TwinSocket `json:"twin_socket,omitempty"`
	WriteMulti  bool        `json:"write_multiple,omitempty"`
}

// TwinSocket is the capability of a separate socket for the server's commands.
type TwinSocket struct {
	Supported bool    `json:"supported"`
	FDIndex   *uint64 `json:"fd_index,omitempty"` // in a reply: the index of its descriptor in the message
}

// Version is the payload of VERSION, as a command and as its reply:
//
//	0 major 2
//	2 minor 2
//	4 data  JSON text with its terminating NUL; may be absent
type Version struct {
	Major, Minor uint16
	Capabilities Capabilities
}

type versionData struct {
	Capabilities *Capabilities `json:"capabilities,omitempty"`
}

// Append appends the payload, always with its JSON text.
func (v Version) Append(b []byte) []byte {
	b = order.AppendUint16(b, v.Major)
	b = order.AppendUint16(b, v.Minor)
	text, err := json.Marshal(versionData{&v.Capabilities})
	if err != nil { // cannot happen: numbers and booleans only
		text = []byte("{}")
	}
	b = append(b, text...)
	return append(b, 0)
}

// DecodeVersion decodes the payload. It ignores members that the specification does not name and
// refuses a known one of another type.
func DecodeVersion(b []byte) (Version, error) {
	if len(b) < 4 {
		return Version{}, fmt.Errorf("VERSION of %d bytes: %w", len(b), ErrShort)
	}
	v := Version{Major: order.Uint16(b), Minor: order.Uint16(b[2:])}
	text := b[4:]
	if len(text) == 0 {
		return v, nil
	}
	if len(text) > maxVersionData {
		return v, fmt.Errorf("VERSION with %d bytes of data: %w", len(text), ErrMalformed)
	}
	if text[len(text)-1] != 0 {
		return v, fmt.Errorf("VERSION data without its NUL: %w", ErrMalformed)
	}
	text = text[:len(text)-1]
	if bytes.IndexByte(text, 0) >= 0 {
		return v, fmt.Errorf("VERSION data with a NUL inside: %w", ErrMalformed)
	}
	if len(text) == 0 { // an empty string, which some clients send for "nothing"
		return v, nil
	}
	var d versionData
	if err := json.Unmarshal(text, &d); err != nil {
		return v, fmt.Errorf("VERSION data: %w: %w", ErrMalformed, err)
	}
	if d.Capabilities != nil {
		v.Capabilities = *d.Capabilities
	}
	return v, nil
}

// limits holds the values of Capabilities with the defaults filled in.
type limits struct {
	fds      int
	transfer uint32
}

// maxFDs is the most descriptors the kernel passes in one message (SCM_MAX_FD,
// include/net/scm.h).
const maxFDs = 253

// limits returns the peer's values, clamped to sensible ones. It refuses a transfer size of zero
// and page sizes that do not include 4 KiB.
func (c Capabilities) limits() (limits, error) {
	l := limits{defaultMaxFDs, defaultMaxTransfer}
	if c.MaxFDs != nil {
		l.fds = int(min(*c.MaxFDs, maxFDs))
	}
	if c.MaxTransfer != nil {
		if *c.MaxTransfer == 0 {
			return l, fmt.Errorf("max_data_xfer_size 0: %w", ErrMalformed)
		}
		l.transfer = uint32(min(*c.MaxTransfer, 1<<31))
	}
	if c.PageSizes != nil && *c.PageSizes&defaultPageSizes == 0 {
		return l, fmt.Errorf("pgsizes %#x without 4096: %w", *c.PageSizes, ErrMalformed)
	}
	return l, nil
}

func ptr(v uint64) *uint64 { return &v }
