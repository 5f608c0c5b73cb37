// Package uids compares users as the kernel shows them.
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

// Same reports whether a and b are surely one user: never where they are Overflow.
func Same(a, b uint32) bool { return a == b && a != Overflow }

// Own reports whether uid is surely the calling process's effective user: where its user namespace
// maps all users, Overflow is a user as any other (nobody).
func Own(uid uint32) bool { return uid == uint32(os.Geteuid()) && !Ambiguous(uid) }

// Trusted reports whether a process of user own trusts user uid with its memory: root, its own
// user, and each of named, where Overflow names all users that the namespace does not map.
func Trusted(uid, own uint32, named []uint32) bool {
	return uid == 0 || Same(uid, own) || slices.Contains(named, uid)
}

// Ambiguous reports whether uid stands for more than one user here: it is Overflow, and the
// process's user namespace does not map all users.
func Ambiguous(uid uint32) bool {
	if uid != Overflow {
		return false
	}
	all, err := os.ReadFile("/proc/self/uid_map")
	return err != nil || !complete(all)
}

// complete reports whether a uid_map (user_namespaces(7)) has all users: uid_t -1 is nobody's.
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

// Check refuses uid as the name of one user where it stands for more.
func Check(uid uint32) error {
	if Ambiguous(uid) {
		return fmt.Errorf("uid %d stands for every user that this user namespace does not map (/proc/self/uid_map): map the user, or name another", uid)
	}
	return nil
}
