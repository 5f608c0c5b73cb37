package hostile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/daemon/control"
)

// Numbers of include/uapi/linux/fuse.h, protocol 7.31.
const (
	fuseLookup   = 1
	fuseGetattr  = 3
	fuseOpen     = 14
	fuseRead     = 15
	fuseStatfs   = 17
	fuseRelease  = 18
	fuseFlush    = 25
	fuseInit     = 26
	fuseInHeader = 40
	fuseRoot     = 1
	fuseFile     = 2
	fuseSize     = 1 << 20
)

// hangingFile mounts a file system with one file, "file", and never answers reads of its first
// pages. At the end of the test it aborts the connection, which wakes all waiting threads, and
// unmounts.
func hangingFile(t *testing.T, dir string) string {
	t.Helper()
	needRoot(t, "mounting a FUSE file system")
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("this kernel has no FUSE: %v", err)
	}
	mount := filepath.Join(dir, "fuse")
	if err := os.Mkdir(mount, 0o755); err != nil {
		t.Fatal(err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)
	if err := unix.Mount("hostile", mount, "fuse", unix.MS_NODEV|unix.MS_NOSUID, options); err != nil {
		unix.Close(fd)
		t.Skipf("FUSE cannot be mounted here: %v", err)
	}
	var st unix.Stat_t
	served := make(chan struct{})
	go func() { defer close(served); serveFUSE(fd) }()
	if err := unix.Stat(mount, &st); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Abort by the connection's own file if fusectl is mounted. Closing the device and a
		// forced unmount have the same effect.
		if err := unix.Unmount(mount, unix.MNT_FORCE|unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
		<-served
		unix.Close(fd)
	})
	return filepath.Join(mount, "file")
}

// serveFUSE serves requests until the file system is unmounted.
func serveFUSE(fd int) {
	buf := make([]byte, 1<<17)
	for {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil || n < fuseInHeader {
			return // ENODEV: unmounted
		}
		le := binary.LittleEndian
		op, unique, node := le.Uint32(buf[4:]), le.Uint64(buf[8:]), le.Uint64(buf[16:])
		attr := func(node uint64) []byte { // struct fuse_attr, 88 bytes
			b := make([]byte, 88)
			le.PutUint64(b, node)
			mode, size := uint32(unix.S_IFDIR|0o755), uint64(0)
			if node == fuseFile {
				mode, size = unix.S_IFREG|0o666, fuseSize
			}
			le.PutUint64(b[8:], size)
			le.PutUint64(b[16:], (size+511)/512)
			le.PutUint32(b[60:], mode)
			le.PutUint32(b[64:], 1)
			return b
		}
		var body []byte
		errno := int32(0)
		switch op {
		case fuseInit: // struct fuse_init_out, 64 bytes
			body = make([]byte, 64)
			le.PutUint32(body, 7)
			le.PutUint32(body[4:], 31)
			le.PutUint32(body[8:], 1<<16) // readahead
			le.PutUint32(body[20:], 1<<16)
		case fuseLookup: // struct fuse_entry_out
			body = make([]byte, 40)
			le.PutUint64(body, fuseFile)
			le.PutUint64(body[16:], 1000)
			le.PutUint64(body[24:], 1000)
			body = append(body, attr(fuseFile)...)
		case fuseGetattr: // struct fuse_attr_out
			body = make([]byte, 16)
			le.PutUint64(body, 1000)
			body = append(body, attr(node)...)
		case fuseOpen:
			body = make([]byte, 16)
		case fuseRead:
			continue // never answered
		case fuseRelease, fuseFlush:
		case fuseStatfs:
			body = make([]byte, 80)
		case 2, 36: // FORGET, INTERRUPT: no answer; an interrupted READ still hangs
			continue
		default:
			errno = -int32(unix.ENOSYS)
		}
		out := make([]byte, 16, 16+len(body))
		le.PutUint32(out, uint32(16+len(body)))
		le.PutUint32(out[4:], uint32(errno))
		le.PutUint64(out[8:], unique)
		if _, err := unix.Write(fd, append(out, body...)); err != nil && !errors.Is(err, unix.ENOENT) {
			return
		}
	}
}

// A buffer on a file system that hangs stalls only its own transfers.
func TestFileThatHangs(t *testing.T) {
	for _, role := range []string{"target", "initiator"} {
		t.Run(role, func(t *testing.T) {
			w := start(t)
			path := hangingFile(t, w.dir)
			b := w.bystander(attachOrder{})
			quiet := b.p99()
			target := w.attach("target", attachOrder{Node: 1, Group: "slow"})
			from := w.attach("initiator", attachOrder{Group: "slow"})
			make := func(p *proxy, hangs bool) reply {
				kind := "anonymous"
				if hangs {
					kind = "path"
				}
				return p.must(order{Op: "buffer", ID: "b", Kind: kind, Size: fuseSize, Path: path})
			}
			m := make(target, role == "target")
			make(from, role == "initiator")
			for i := range 4 {
				from.write(fmt.Sprint(i), "b", m.Remote, fuseSize)
			}
			node, stuck := 1, target
			if role == "initiator" {
				node, stuck = 0, from
			}
			w.saw(node, control.CounterLeases, 0)
			undisturbed(t, b, quiet)
			stuck.signal(unix.SIGKILL)
			undisturbed(t, b, quiet)
			b.fine()
		})
	}
}
