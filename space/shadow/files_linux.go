package shadow

import (
	"maps"
	"slices"
	"time"
)

// A peer that maps files has room for a limited number of them, and of bytes. A file counts once
// for each fileStep up to the end of its shared part, since package vfio/user maps it in such
// steps and has the same limit.
const (
	fileStep  = 4 << 30
	fileTries = 64 // evictions of files for one mapping: more than the largest weight of a file
)

// fileID identifies the file behind a descriptor.
type fileID struct{ dev, ino uint64 }

// evictFile evicts a file, in all slots, of the slot that has most of the peer's files: the file
// with the fewest places, of these the least recently used. Bytes do not count, since a slot with
// many bytes may have one file. It reports whether it evicted one. It unlocks the Memory
// meanwhile.
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

// used returns when a share with places was used last; ok is false if one of its places is held.
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

// evictAll evicts all ready places of a file and reports whether there were any. It unlocks the
// Memory meanwhile.
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
