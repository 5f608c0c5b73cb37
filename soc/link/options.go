package link

import (
	"errors"
	"fmt"
	"time"
)

// MaxDelay limits Options.Delay (defined by this project).
const MaxDelay = time.Second

// ErrOption means that an option of the links is invalid.
var ErrOption = errors.New("link")

// Options are the flags for the links between emulated nodes. Without Delay and Loss there is no
// link: frames arrive at once.
type Options struct {
	Delay time.Duration // added to each frame's hop latency and serialization time
	Loss  float64       // probability that a frame is lost, 0 to less than 1
	Seed  uint64        // of the random losses; 0: a different seed at each start
}

// Check validates the options. Its errors match ErrOption and name the flag.
func (o *Options) Check() error {
	switch {
	case o.Delay < 0 || o.Delay > MaxDelay:
		return fmt.Errorf("%w: --link-delay %v: must be 0 to %v", ErrOption, o.Delay, MaxDelay)
	case !(o.Loss >= 0 && o.Loss < 1): // NaN fails both comparisons
		return fmt.Errorf("%w: --link-loss %v: must be 0 to less than 1, such as 0.01", ErrOption, o.Loss)
	case o.Loss > 0 && o.Loss < 1e-6: // Injection counts in millionths: no frame would be lost
		return fmt.Errorf("%w: --link-loss %v: must be 0, or at least 0.000001", ErrOption, o.Loss)
	}
	return nil
}

// Some reports whether there are links at all.
func (o *Options) Some() bool { return o.Delay > 0 || o.Loss > 0 }

// Injection returns what happens to frames on such a link.
func (o *Options) Injection() Injection {
	n := int(o.Loss * 1e6)
	return Injection{
		Latency:  o.Delay.Nanoseconds(),
		LoseData: n, LoseAck: n, LoseNack: n, LoseRAPF: n, LoseRead: n, LoseAnswer: n,
	}
}
