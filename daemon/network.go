package daemon

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/domain"
	"github.com/exanet/pfd/internal/groupname"
	"github.com/exanet/pfd/internal/plaintext"
	"github.com/exanet/pfd/internal/quota"
	"github.com/exanet/pfd/internal/uids"
)

// directory makes the directory of groups and PDIDs.
func (c *Config) directory() (*domain.Directory, error) {
	dir := domain.DirectoryConfig{First: c.FirstPDID, Last: c.LastPDID, GroupSize: c.GroupSize, Quota: c.Quota,
		KeepLast: func(uid uint32) bool { return !quota.Privileged(uid) }}
	if c.Groups != "" {
		text, err := os.ReadFile(c.Groups)
		if err != nil {
			return nil, fmt.Errorf("%w: --groups: %w", ErrConfig, err)
		}
		if text, err = plaintext.Text(text); err != nil {
			return nil, fmt.Errorf("%w: groups in %s: %w", ErrConfig, c.Groups, err)
		}
		if dir.Groups, err = ParseGroups(string(text), c.GroupSize); err != nil {
			return nil, fmt.Errorf("groups in %s: %w", c.Groups, err)
		}
	}
	return domain.NewDirectory(dir)
}

// CheckGroups returns an error if the file of groups is invalid.
func (c *Config) CheckGroups() error {
	full := c.withDefaults()
	_, err := full.directory()
	return err
}

// ParseGroups parses a file of groups that several pfds share. A line is a group: its user's
// number, its name and the first of its PDIDs, of which it has size. A '#' begins a comment.
// Errors match ErrConfig and name the line.
func ParseGroups(text string, size int) ([]domain.Group, error) {
	most := int(device.MaxPDID) - size + 1
	var list []domain.Group
	line := 0
	for l := range strings.Lines(text) {
		line++
		l, _, _ = strings.Cut(l, "#")
		f := strings.Fields(l)
		if len(f) == 0 {
			continue
		}
		if len(f) != 3 {
			return nil, fmt.Errorf("%w: line %d has %d words: want UID GROUP FIRST-PDID", ErrConfig, line, len(f))
		}
		uid, err := strconv.ParseUint(f[0], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%w: line %d: user %q is not a number", ErrConfig, line, f[0])
		}
		if err := uids.Check(uint32(uid)); err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrConfig, line, err)
		}
		if err := groupname.Check(f[1]); err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrConfig, line, err)
		}
		first, err := strconv.ParseUint(f[2], 0, 16)
		if err != nil || first == 0 || first > uint64(most) {
			return nil, fmt.Errorf("%w: line %d: first PDID %q: want 1 to %d", ErrConfig, line, f[2], most)
		}
		list = append(list, domain.Group{UID: uint32(uid), Name: f[1], First: device.PDID(first)})
	}
	return list, nil
}

// ParsePDIDs parses a range of PDIDs, A-B; "" is all of them. Errors match ErrConfig.
func ParsePDIDs(s string) (first, last device.PDID, err error) {
	if s == "" {
		return 0, 0, nil
	}
	a, b, ok := strings.Cut(s, "-")
	x, errA := strconv.ParseUint(a, 0, 16)
	y, errB := strconv.ParseUint(b, 0, 16)
	if !ok || errA != nil || errB != nil || x == 0 || y < x || y > uint64(device.MaxPDID) {
		return 0, 0, fmt.Errorf("%w: --pdid-range %q: want A-B, 1 to %d", ErrConfig, s, device.MaxPDID)
	}
	return device.PDID(x), device.PDID(y), nil
}
