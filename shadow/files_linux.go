package shadow

import (
	"maps"
	"slices"
	"time"
)

// A peer that maps files has room for a number of them, and of bytes. A file counts once
// for each fileStep up to what is shared of it (package vfio/user maps it in such steps,
// and has room for as many).
const (
	fileStep  = 4 << 30
	fileTries = 64 // evictions of files for one mapping: more than a file may weigh
)

// fileID says which file a share is of, whatever its descriptor.
type fileID struct{ dev, ino uint64 }

// evictFile evicts a file, in all slots, of the slot that has most of the peer's files:
// the one with the fewest places, of these the one used longest ago. Bytes do not count:
// a slot with many of them may have one file. It tells whether one went. Unlocks.
func (m *Memory) evictFile() bool {
	places := map[fileID]int{}
	var from *space
	most := 0
	for i := range m.spaces {
		weights, sum := map[fileID]int{}, 0
		for _, s := range m.spaces[i].shares {
			if n := len(s.places); n > 0 {
				places[s.file] += n
				sum += max(s.weight-weights[s.file], 0)
				weights[s.file] = max(s.weight, weights[s.file])
			}
		}
		if sum > most {
			from, most = &m.spaces[i], sum
		}
	}
	if from == nil {
		return false
	}
	var found *share
	var since time.Time
	for _, s := range from.shares {
		if n := places[s.file]; n == 0 || found != nil && n > places[found.file] {
			continue
		}
		if used, ok := s.used(); ok && (found == nil || places[s.file] < places[found.file] || used.Before(since)) {
			found, since = s, used
		}
	}
	return found != nil && m.evictAll(found.file)
}

// used gives when a share with places was used last, if none of them is held.
func (s *share) used() (last time.Time, ok bool) {
	for _, p := range s.places {
		if p.state != ready {
			return last, false
		}
		if p.used.After(last) {
			last = p.used
		}
	}
	return last, len(s.places) > 0
}

// evictAll evicts what of a file is ready, and tells whether there was something. Unlocks.
func (m *Memory) evictAll(file fileID) (went bool) {
	for i := range m.spaces {
		for _, s := range slices.Clone(m.spaces[i].shares) {
			if s.file != file {
				continue
			}
			for _, p := range slices.Collect(maps.Values(s.places)) {
				if p.state == ready && m.evict(p) > 0 {
					m.stats.Evictions++
					went = true
				}
			}
		}
	}
	return went
}
