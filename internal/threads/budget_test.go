package threads

import (
	"slices"
	"testing"
)

func TestShares(t *testing.T) {
	room := 100
	b := newBudget(func() int { return room })
	fill := func(uid uint32, first bool) (n int) {
		for b.Take(uid, first) {
			n++
		}
		return n
	}
	// 92 of 100 tasks: a user gets half, or a quarter if it has calls already.
	for _, c := range []struct {
		uid   uint32
		first bool
		want  int
	}{
		{1, false, 23}, {1, true, 46 - 23}, {2, false, 0}, {2, true, 23}, {3, true, 11}, {1, true, 0},
	} {
		if n := fill(c.uid, c.first); n != c.want {
			t.Errorf("user %d (first %v) has %d more calls, want %d", c.uid, c.first, n, c.want)
		}
	}
	b.Charge(1)
	if n := b.users[1]; n != 47 {
		t.Errorf("a call that is charged makes %d, want 47", n)
	}
	for range 47 {
		b.Give(1)
	}
	if b.sum != 34 || b.users[1] != 0 {
		t.Errorf("%d calls are left, %d of user 1, want 34 and 0", b.sum, b.users[1])
	}
	// The limits may decrease: existing threads are reused, and no more are created.
	room, b.looked = 0, b.looked.Add(-fresh)
	if n := fill(1, true); n < 1 || b.sum > b.made {
		t.Errorf("%d calls with %d threads, and user 1 has %d of them", b.sum, b.made, n)
	}
}

func TestNoRoom(t *testing.T) {
	b := newBudget(func() int { return reserve })
	if made, _ := b.Prepare(); made != 0 {
		t.Errorf("%d threads are created without room for any", made)
	}
	if b.Take(1, true) {
		t.Error("a call is accepted although no thread can be created")
	}
}

// Room on this machine: tasks can be created, and the threads that Prepare creates stay.
func TestPrepare(t *testing.T) {
	b := New()
	if made, wanted := b.Prepare(); made != wanted {
		t.Fatalf("%d of %d threads were created: this test may have a limit", made, wanted)
	}
	before := own()
	if before < prepared {
		t.Fatalf("%d threads, want %d at least", before, prepared)
	}
	b.Prepare()
	if n := own(); n > before+spare {
		t.Errorf("%d threads, %d before they were made again", n, before)
	}
}

func TestDirectories(t *testing.T) {
	const two = "29 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
	const one = "31 24 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n32 24 0:28 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
	for _, c := range []struct {
		name, cgroup, mounts string
		want                 []string
	}{
		{"version 2", "0::/system.slice/pfd.service\n", two,
			[]string{"/sys/fs/cgroup/system.slice/pfd.service", "/sys/fs/cgroup/system.slice", "/sys/fs/cgroup"}},
		{"version 1", "8:pids:/a/b:c\n1:cpu:/x\n", one,
			[]string{"/sys/fs/cgroup/pids/a/b:c", "/sys/fs/cgroup/pids/a", "/sys/fs/cgroup/pids"}},
		{"a container that sees its own part", "0::/docker/1/init\n", "9 8 0:26 /docker/1 /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
			[]string{"/sys/fs/cgroup/init", "/sys/fs/cgroup"}},
		{"a name with a space", "0::/a\n", "9 8 0:26 / /mnt/my\\040groups rw - cgroup2 none rw\n", []string{"/mnt/my groups/a", "/mnt/my groups"}},
		{"no pids", "1:cpu:/x\n", one, nil},
		{"nothing", "", "", nil},
		{"broken lines", "0:\nx\n", "a b - \n - cgroup2\n", nil},
	} {
		if got := directories(c.cgroup, c.mounts); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
