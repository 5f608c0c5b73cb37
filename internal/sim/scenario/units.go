package scenario

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/exanet/pfd/internal/config"
	"github.com/exanet/pfd/internal/sim/topology"
)

// Duration is a time in nanoseconds, in a file a text as "150ns" or "2ms".
type Duration int64

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	switch {
	case err != nil:
		return fmt.Errorf("%q is no time: want a number with a unit, as 150ns, 8us, 2ms or 1s", text)
	case v < 0:
		return fmt.Errorf("the time %s is negative", text)
	}
	*d = Duration(v)
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// String returns the time with its unit.
func (d Duration) String() string { return strings.ReplaceAll(time.Duration(d).String(), "µs", "us") }

// Size is a number of bytes, in a file a text as "64KiB".
type Size uint64

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Size) UnmarshalText(text []byte) error {
	v, err := config.ParseSize(string(text))
	if err == nil {
		*s = Size(v)
	}
	return err
}

// MarshalText implements encoding.TextMarshaler.
func (s Size) MarshalText() ([]byte, error) {
	for _, u := range []struct {
		name string
		size Size
	}{{"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if s != 0 && s%u.size == 0 {
			return fmt.Appendf(nil, "%d%s", s/u.size, u.name), nil
		}
	}
	return fmt.Appendf(nil, "%dB", uint64(s)), nil
}

// Rate is a number of bits a second, in a file a text as "10Gb/s".
type Rate int64

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *Rate) UnmarshalText(text []byte) error {
	number, unit := string(text), ""
	for _, u := range []string{"Gb/s", "Mb/s"} {
		if rest, ok := strings.CutSuffix(number, u); ok {
			number, unit = rest, u
			break
		}
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if factor := map[string]float64{"Gb/s": 1e9, "Mb/s": 1e6}[unit]; err == nil && factor != 0 && v*factor >= 1e6 && v*factor <= 1e13 {
		*r = Rate(math.Round(v * factor))
		return nil
	}
	return fmt.Errorf("%q is no rate: want 1Mb/s to 10000Gb/s, as 10Gb/s", text)
}

// MarshalText implements encoding.TextMarshaler.
func (r Rate) MarshalText() ([]byte, error) {
	return []byte(strconv.FormatFloat(float64(r)/1e9, 'f', -1, 64) + "Gb/s"), nil
}

// Nodes is a set of nodes in the order of a file: a number, a text as "0-3,8", or a list of both.
type Nodes []int

// UnmarshalText implements encoding.TextUnmarshaler. "all" is left to the scenario: it is nil.
func (n *Nodes) UnmarshalText(text []byte) error {
	*n = nil
	if string(text) == "all" {
		return nil
	}
	for part := range strings.SplitSeq(string(text), ",") {
		a, b, ranged := strings.Cut(strings.TrimSpace(part), "-")
		first, err := strconv.Atoi(a)
		last := first
		if err == nil && ranged {
			last, err = strconv.Atoi(b)
		}
		if err != nil || first < 0 || last < first || last >= topology.MaxNodes || len(*n)+last-first >= topology.MaxNodes {
			return fmt.Errorf("%.40q names no nodes: want up to %[2]d numbers below %[2]d and ranges, as \"0-3,8\", or \"all\"", text, topology.MaxNodes)
		}
		for i := first; i <= last; i++ {
			*n = append(*n, i)
		}
	}
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (n Nodes) MarshalText() ([]byte, error) {
	if n == nil {
		return []byte("all"), nil
	}
	var parts []string
	for i := 0; i < len(n); {
		k := i
		for k+1 < len(n) && n[k+1] == n[k]+1 {
			k++
		}
		if k == i {
			parts = append(parts, strconv.Itoa(n[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", n[i], n[k]))
		}
		i = k + 1
	}
	return []byte(strings.Join(parts, ",")), nil
}
