package guests

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/vfio/kernel"
)

// What this program does in a guest.

// insideVariable names the functions of a guest that TestInside drives.
const insideVariable = "EXANET_INSIDE"

// memfd makes a file for size bytes.
func memfd(size uint64) (int, error) {
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err == nil {
		err = unix.Ftruncate(fd, int64(size))
	}
	return fd, err
}

// say prints a line of JSON.
func say(v any) error { return json.NewEncoder(os.Stdout).Encode(v) }

func end(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Where maps of a test go: inside what an IOMMU of 39 bits can have.
const (
	mapsAt    = 1 << 32
	mapRights = 3 // read, write
)

// bareTimes is what a bare map of 256 absent pages took, by one call and by 16.
type bareTimes struct{ Whole, Places time.Duration }

// bareMap maps 1 MiB of a file that nobody has touched by the kernel's VFIO alone,
// for each line that it reads.
func bareMap(args []string) int {
	d, err := kernel.Open(args[0], kernel.Options{})
	if err != nil {
		return end(err)
	}
	defer d.Close()
	one := func(step uint64) (time.Duration, error) {
		const size = 256 * device.PageSize
		fd, err := memfd(size)
		if err != nil {
			return 0, err
		}
		defer unix.Close(fd)
		began := time.Now()
		for at := uint64(0); at < size && err == nil; at += step {
			err = d.MapDMA(mapsAt+at, step, fd, at, mapRights)
		}
		return time.Since(began), errors.Join(err, d.UnmapDMA(mapsAt, size))
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		whole, err := one(256 * device.PageSize)
		places, more := one(16 * device.PageSize)
		if err := errors.Join(err, more, say(bareTimes{whole, places})); err != nil {
			return end(err)
		}
	}
	return 0
}

// mapPages maps so many pages of 4 KiB for a device, and then unmaps them: those of
// one file again and again, in an order by which no two lie side by side, so that the
// IOMMU has an entry for each.
func mapPages(args []string) int {
	pages, err := strconv.ParseUint(args[1], 0, 64)
	if err != nil {
		return end(err)
	}
	d, err := kernel.Open(args[0], kernel.Options{})
	if err != nil {
		return end(err)
	}
	defer d.Close()
	const size = 64 << 20
	fd, err := memfd(size)
	if err != nil {
		return end(err)
	}
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return end(err)
	}
	for _, page := range rand.New(rand.NewPCG(1, 1)).Perm(size / device.PageSize) {
		b[page*device.PageSize] = 1
	}
	began := time.Now()
	for at := uint64(0); at < pages*device.PageSize; at += size {
		if err := d.MapDMA(mapsAt+at, min(size, pages*device.PageSize-at), fd, 0, mapRights); err != nil {
			return end(fmt.Errorf("after %d pages: %w", at/device.PageSize, err))
		}
	}
	mapped := time.Since(began)
	if err := say(mapped); err != nil {
		return end(err)
	}
	// Until it is told, they stay.
	bufio.NewScanner(os.Stdin).Scan()
	return end(errors.Join(d.UnmapDMA(mapsAt, pages*device.PageSize), say(time.Since(began)-mapped)))
}
