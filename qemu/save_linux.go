package qemu

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/qemu/agent"
)

// Time limits. Values below are defined by this project.
const (
	coldTime = 4 * time.Minute // a boot without KVM took 87 s on a busy host
	longTime = 8 * time.Minute // a boot of Debian took 135 s there
	kvmTime  = 20 * time.Second
	tries    = 3
	keep     = 6 // number of saved guests
)

// lock excludes other Setups.
func (c *Cache) lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	f, err := os.OpenFile(c.path("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	for said := false; ; said = true {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("cache: %w", os.NewSyscallError("flock", err)), f.Close())
		}
		if !said {
			c.say("waiting for another exanetctl that uses %s", c.Dir)
		}
		if err := pause(ctx); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
}

// saved is a booted and saved guest.
type saved struct {
	machine  string
	emulator emulator
	accel    string
	image    image
	state    string // file with its state
}

// saved returns the guest of the current programs. Its state file may not exist yet.
func (c *Cache) saved(ctx context.Context, system System, machine, accel string) (saved, error) {
	s := saved{machine: machine}
	var err error
	if s.emulator, err = c.emulator(ctx); err != nil {
		return s, err
	}
	s.accel = accel
	s.image.kernel = c.kernelPath("kernel", "vmlinuz")
	if !exists(s.image.kernel) {
		return s, fmt.Errorf("%s of the guests: %w", c.kernelName("kernel"), c.missing())
	}
	files, key, err := c.initramfs(system)
	if err != nil {
		return s, err
	}
	s.image.initramfs, s.image.boot, s.image.ready = files, smallBoot, []string{"true"}
	if system == Debian {
		s.image.boot, s.image.ready = debianBoot, debianReady
	}
	h := sha256.New()
	fmt.Fprintln(h, s.emulator.Version, key, strings.Join(machineArgs(machine, accel, "", image{boot: s.image.boot}, sharedMemory), " "))
	if err := copyFile(h, s.image.kernel); err != nil {
		return s, fmt.Errorf("kernel of the guests: %w", err)
	}
	s.state = c.path("guest-" + hex.EncodeToString(h.Sum(nil))[:16])
	return s, nil
}

// Prepare boots and saves the guest of Programs, for a system and a machine, from the fetched
// files. It uses no network. The error matches ErrNotSetUp if files are missing.
func (c *Cache) Prepare(ctx context.Context, system System, machine string) error {
	c = c.of(machine)
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	_, err = c.prepare(ctx, system, machine)
	return err
}

// prepare boots and saves a guest unless that was done already. The caller must hold the lock.
func (c *Cache) prepare(ctx context.Context, system System, machine string) (saved, error) {
	accels := []string{accelTCG}
	if c.arm != (runtime.GOARCH == "arm64") {
		// the host has another architecture
	} else if f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err == nil {
		_ = f.Close()
		if !exists(c.path("no-kvm")) {
			accels = []string{accelKVM, accelTCG}
		}
	}
	var failed error
	for _, accel := range accels {
		s, err := c.saved(ctx, system, machine, accel)
		if err != nil || exists(s.state) {
			return s, err
		}
		limit, attempts := coldTime, tries
		if system == Debian {
			limit = longTime
		}
		if accel == accelKVM {
			limit, attempts = kvmTime, 1
		}
		for n := range attempts {
			c.say("booting a guest (%s), attempt %d, at most %v", accel, n+1, limit)
			began := time.Now()
			err := c.boot(ctx, s, limit)
			if err == nil {
				c.say("saved the guest after %.1f s", time.Since(began).Seconds())
				return s, c.prune()
			}
			if ctx.Err() != nil {
				return s, ctx.Err()
			}
			c.say("%v", err)
			failed = err
		}
		if accel == accelKVM {
			c.say("KVM does not boot a guest here: continuing without it")
			if err := replace(c.path("no-kvm"), []byte(failed.Error()+"\n")); err != nil {
				return s, fmt.Errorf("cache: %w", err)
			}
		}
	}
	return saved{}, failed
}

// boot boots a guest without nodes and saves its state.
func (c *Cache) boot(ctx context.Context, s saved, limit time.Duration) (err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	dir, err := os.MkdirTemp("", "exanet-boot-")
	if err != nil {
		return fmt.Errorf("directory for a guest: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// With -no-reboot, a panic of the guest ends the wait.
	p, err := s.emulator.start(dir, append(machineArgs(s.machine, s.accel, dir, s.image, sharedMemory), "-no-reboot")...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.end(context.WithoutCancel(ctx))) }()
	m, err := dialMonitor(ctx, monitorSocket(dir), p.alive)
	if err != nil {
		return err
	}
	defer m.close()
	var out strings.Builder
	code, err := agent.Run(ctx, dir, agent.Command{Exec: agent.Exec{Args: s.image.ready}, Stdout: &out, Stderr: &out})
	if err == nil && code != 0 {
		err = fmt.Errorf("%q failed with exit code %d: %s", s.image.ready, code, out.String())
	}
	if err != nil {
		return fmt.Errorf("the guest does not boot: %w; its console: %q", errors.Join(err, p.alive()), lastOf(filepath.Join(dir, "console.log")))
	}
	defer func() { _ = os.Remove(s.state + ".new") }()
	if err := m.save(ctx, s.state+".new"); err != nil {
		return err
	}
	return os.Rename(s.state+".new", s.state)
}

// prune removes saved guests of earlier programs.
func (c *Cache) prune() error {
	for _, pattern := range []string{"guest-*", "initramfs-*"} {
		list, err := filepath.Glob(c.path(pattern))
		if err != nil {
			return err
		}
		for len(list) > keep {
			oldest := 0
			for i := range list {
				if changed(list[i]).Before(changed(list[oldest])) {
					oldest = i
				}
			}
			if err := os.Remove(list[oldest]); err != nil {
				return fmt.Errorf("cache: %w", err)
			}
			list = append(list[:oldest], list[oldest+1:]...)
		}
	}
	return nil
}

func changed(path string) time.Time {
	st, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return st.ModTime()
}
