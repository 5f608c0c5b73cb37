package gup

import (
	"errors"
	"sync"
	"time"

	"github.com/exanet/pfd/device"
)

// Page-ins that hang (ours).
const (
	hangTime  = 100 * time.Millisecond // after which a page-in under way counts as one
	hangsMost = 2                      // in a mapping, before its other absent pages are left
	underWay  = 16                     // page-ins of a process at a time
)

// ErrHangs says that other pages of the mapping hang: most likely nobody answers
// the process's own userfaultfd, or a file system does not. It passes when they do.
var ErrHangs = errors.New("page-ins of other pages of this mapping hang: its userfaultfd or file system does not answer")

// ErrUnanswered says that the process was asked to bring its pages in and has not
// answered: it is stopped, or busy. It passes when it does.
var ErrUnanswered = errors.New("the process does not answer the question for its pages")

// hangs are a process's page-ins under way. What serves one page of a mapping
// serves the others, too; where some hang the next one would only cost another
// thread.
type hangs struct {
	mu    sync.Mutex
	calls [underWay]struct {
		mapping device.VA // its start
		began   time.Time // zero: none
	}
}

// enter notes a page-in in the mapping that starts at m; false where it is not to
// be tried.
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
