package emu

import (
	"slices"

	"github.com/exanet/pfd/soc"
)

// item is an action that a node requests.
type item struct {
	node   *node
	action soc.Action
}

// itemQueue is a queue of actions. It starts at head.
type itemQueue struct {
	items []item
	head  int
}

func (q *itemQueue) len() int { return len(q.items) - q.head }

func (q *itemQueue) some() bool { return q.head < len(q.items) }

func (q *itemQueue) add(it item) {
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	} else if q.head >= passWork && q.head > len(q.items)/2 {
		// A queue that never becomes empty must not grow without limit.
		q.items, q.head = slices.Delete(q.items, 0, q.head), 0
	}
	q.items = append(q.items, it)
}

// passWork is how many pieces of work a pass does before it reads the clock and polls the processes
// again: some 100 us of data. Processes' doorbells are not taken while half as many urgent pieces
// wait. Defined by this project.
const passWork = 64
