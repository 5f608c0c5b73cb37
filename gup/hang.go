package gup

import (
	"errors"
	"sync"
	"time"

	"github.com/exanet/pfd/device"
)

// Page-ins that hang. Values below are defined by this project.
const (
	hangTime  = 100 * time.Millisecond // a page-in that takes longer counts as one that hangs
	hangsMost = 2                      // in a mapping; then its other absent pages are not tried
	underWay  = 16                     // page-ins of a process in flight
)

// ErrHangs says that page-ins of other pages of the mapping hang: most likely the process's own
// userfaultfd, or a file system, does not answer. The error is temporary.
var ErrHangs = errors.New("page-ins of other pages of this mapping hang: its userfaultfd or file system does not answer")

// ErrUnanswered says that the process was asked to page in and has not answered: it is stopped or
// busy. The error is temporary.
var ErrUnanswered = errors.New("the process does not answer the request to page in")

// hangs records a process's page-ins in flight. One server usually serves all pages of a mapping:
// where some page-ins hang, the next one would only occupy another thread.
type hangs struct {
	mu    sync.Mutex
	calls [underWay]struct {
		mapping device.VA // its start
		began   time.Time // zero: not in use
	}
}

// enter records a page-in in the mapping that starts at m; it returns false if the page-in must
// not be tried.
func (h *hangs) enter(m device.VA) (call int, ok bool) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	call = -1
	hanging := 0
	for i := range h.calls {
		switch c := &h.calls[i]; {
		case c.began.IsZero():
			call = i
		case c.mapping == m && now.Sub(c.began) > hangTime:
			hanging++
		}
	}
	if call < 0 || hanging >= hangsMost {
		return 0, false
	}
	h.calls[call].mapping, h.calls[call].began = m, now
	return call, true
}

func (h *hangs) leave(call int) {
	h.mu.Lock()
	h.calls[call].began = time.Time{}
	h.mu.Unlock()
}
