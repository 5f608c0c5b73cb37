package link

import (
	"errors"
	"fmt"
	"time"
)

// MaxDelay bounds Options.Delay (ours).
const MaxDelay = time.Second

// ErrOption says that a link cannot be as asked.
var ErrOption = errors.New("link")

// Options are what flags say of the links between emulated nodes. Without Delay and
// Loss there is no link: frames arrive at once.
type Options struct {
	Delay time.Duration // that each frame takes longer than a hop and its bytes
	Loss  float64       // how likely a frame is lost, 0 to less than 1
	Seed  uint64        // of what is lost; 0: another one at each start
}

// Check tells whether there can be such links. Its errors match ErrOption, and name the flag.
func (o *Options) Check() error {
	switch {
	case o.Delay < 0 || o.Delay > MaxDelay:
		return fmt.Errorf("%w: --link-delay %v: want 0 to %v", ErrOption, o.Delay, MaxDelay)
	case !(o.Loss >= 0 && o.Loss < 1): // not a number is neither
		return fmt.Errorf("%w: --link-loss %v: want 0 to less than 1, as 0.01", ErrOption, o.Loss)
	case o.Loss > 0 && o.Loss < 1e-6: // Injection counts in millionths: none would be lost
		return fmt.Errorf("%w: --link-loss %v: want 0, or at least 0.000001", ErrOption, o.Loss)
	}
	return nil
}

// Some tells whether there is a link at all.
func (o *Options) Some() bool { return o.Delay > 0 || o.Loss > 0 }

// Injection gives what happens to frames on such a link.
func (o *Options) Injection() Injection {
	n := int(o.Loss * 1e6)
	return Injection{
		Latency:  o.Delay.Nanoseconds(),
		LoseData: n, LoseAck: n, LoseNack: n, LoseRAPF: n, LoseRead: n, LoseAnswer: n,
	}
}
