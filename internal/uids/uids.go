// Package uids compares user ids as the kernel reports them.
package uids

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
)

// Overflow stands for every user that a user namespace does not map
// (kernel.overflowuid, user_namespaces(7)).
const Overflow = 65534

// Same reports whether a and b are certainly the same user. Two Overflow ids never are.
func Same(a, b uint32) bool { return a == b && a != Overflow }

// Own reports whether uid is certainly the effective user of this process. If its user
// namespace maps all users, Overflow is an ordinary user (nobody).
func Own(uid uint32) bool { return uid == uint32(os.Geteuid()) && !Ambiguous(uid) }

// Trusted reports whether a process of user own trusts user uid with its memory: root, its own
// user, and each of named, where Overflow means all users that the namespace does not map.
func Trusted(uid, own uint32, named []uint32) bool {
	return uid == 0 || Same(uid, own) || slices.Contains(named, uid)
}

// Ambiguous reports whether uid stands for several users: it is Overflow, and the user
// namespace of this process does not map all users.
func Ambiguous(uid uint32) bool {
	if uid != Overflow {
		return false
	}
	all, err := os.ReadFile("/proc/self/uid_map")
	return err != nil || !complete(all)
}

// complete reports whether a uid_map (user_namespaces(7)) maps all users; uid_t -1 is no user.
func complete(uidMap []byte) bool {
	var sum uint64
	for line := range bytes.Lines(uidMap) {
		f := bytes.Fields(line)
		if len(f) != 3 {
			return false
		}
		n, err := strconv.ParseUint(string(f[2]), 10, 32)
		if err != nil {
			return false
		}
		sum += n
	}
	return sum == 1<<32-1
}

// Check returns an error if uid stands for several users.
func Check(uid uint32) error {
	if Ambiguous(uid) {
		return fmt.Errorf("uid %d stands for every user that this user namespace does not map (/proc/self/uid_map): map the user, or name another", uid)
	}
	return nil
}
