package bench

import "time"

// Report is what a run has measured: medians, microseconds where nothing else is
// said.
type Report struct {
	Version int     `json:"version"`
	Machine Machine `json:"machine"`

	Small       Small      `json:"write_4KiB"`
	Large       Large      `json:"write_1MiB"`          // the initiator polls
	Sleeping    Large      `json:"write_1MiB_sleeping"` // it sleeps
	Isolated    []Isolated `json:"write_4KiB_isolated"`
	Methods     []Method   `json:"methods"`
	Sizes       []Size     `json:"sizes"`
	Outstanding []Window   `json:"outstanding"`
	Firmware    []Firmware `json:"firmware_options"`
	Channels    []Channels `json:"channels"`
	Idle        Idle       `json:"idle"`
	Tracing     []Traced   `json:"tracing"`
	PinnedBytes int64      `json:"pinned_bytes"`
}

// Machine is what it was measured on.
type Machine struct {
	Processor  string `json:"processor"`
	Processors int    `json:"processors"`
	Kernel     string `json:"kernel"`
	// Load is how many threads wanted a processor in the minute before (loadavg).
	Load float64 `json:"load"`
}

// Small is 4 KiB, polling: destination present, and absent (gup, p1).
type Small struct {
	Transfers int     `json:"transfers"` // of each kind
	Present   float64 `json:"present_us"`
	Absent    float64 `json:"absent_us"`
	// Bare is one page brought in by the same call without pfd; Added by a fault.
	Bare        float64 `json:"bare_page_in_us,omitzero"`
	Added       float64 `json:"added_us"`
	Ratio       float64 `json:"absent_by_present"`
	AddedByBare float64 `json:"added_by_bare,omitzero"`
}

// Isolated is 4 KiB a pause after the last one, polling (gup, p1), beside the wake-up of a
// sleeping thread after the same pause, and the same transfer back to back.
type Isolated struct {
	Pause      time.Duration `json:"pause_ns"`
	Wake       float64       `json:"bare_wake_up_us"`
	Present    float64       `json:"present_us"`
	Absent     float64       `json:"absent_us"`
	BackToBack float64       `json:"present_back_to_back_us"`
	// Excess is what is beyond the wake-up, by the time back to back.
	Excess float64 `json:"present_less_wake_up_by_back_to_back"`
}

// Remote is what a fault costs with a device in another process.
type Remote struct {
	// What a fault adds to a transfer of 4 KiB, messages to the device and those awaited.
	Sent    float64 `json:"messages_sent"`
	Awaited float64 `json:"messages_awaited"`
	Unasked float64 `json:"pages_unasked"` // mapped by a fault, and asked for by nobody
	// An idle pfd of two nodes: bytes pinned, and bytes that mapping would have pinned
	// behind the kernel's VFIO.
	Pinned int64 `json:"pinned_bytes"`
	Tables int64 `json:"tables_bytes"`
}

// Large is 1 MiB: destination present, all of it absent (gup, pa), and
// absent but touched first by the target.
type Large struct {
	Transfers  int     `json:"transfers"`
	Present    float64 `json:"present_us"`
	Absent     float64 `json:"absent_us"`
	TouchFirst float64 `json:"touch_first_us"` // touching and writing
	// Bare is its pages brought in by the same call without pfd, 64 at a time; Raw
	// its bytes moved by the same two calls, 256 KiB at a time.
	Bare         float64 `json:"bare_page_in_us"`
	Raw          float64 `json:"raw_copy_us"`
	Ratio        float64 `json:"absent_by_present"`
	ByTouchFirst float64 `json:"absent_by_touch_first"`
	BySum        float64 `json:"absent_by_present_and_bare"`
	RawByPresent float64 `json:"raw_copy_by_present"`
}

// Method is a page-in method: 4 KiB absent under p1, 1 MiB absent under pa.
type Method struct {
	Method string  `json:"method"`
	Small  float64 `json:"write_4KiB_us"`
	Large  float64 `json:"write_1MiB_us"`
}

// Size is writes and reads of a size, destination present and absent (gup, pa).
type Size struct {
	Bytes        uint64  `json:"bytes"`
	WritePresent float64 `json:"write_present_us"`
	ReadPresent  float64 `json:"read_present_us"`
	WriteAbsent  float64 `json:"write_absent_us"`
	ReadAbsent   float64 `json:"read_absent_us"`
}

// Window is a number of blocks in flight a transfer, with 1 MiB.
type Window struct {
	Blocks  int     `json:"blocks"`
	Present float64 `json:"present_us"`
	Absent  float64 `json:"absent_us"`
}

// Firmware is the firmware with all its optimizations, or without one.
type Firmware struct {
	Options string  `json:"options"` // as pfd --firmware-options takes them
	Small   float64 `json:"write_4KiB_us"`
	Large   float64 `json:"write_1MiB_us"`
	Absent  float64 `json:"write_1MiB_absent_us"`
}

// Channels is a number of channels kept busy: with writes of 64 bytes, where the
// machine is what costs, and of 4 KiB, where their memory does not stay in the
// processor's caches.
type Channels struct {
	Channels int  `json:"channels"`
	Tiny     Rate `json:"write_64B"`
	Small    Rate `json:"write_4KiB"`
}

// Rate is how fast transfers follow one another.
type Rate struct {
	PerSecond float64 `json:"transfers_per_second"`
	Cost      float64 `json:"cost_us"`    // of one transfer: time by transfers
	Processor float64 `json:"pfd_cpu_us"` // of pfd, for one
}

// Idle is a pfd to which processes are attached that do nothing.
type Idle struct {
	Nodes     int     `json:"nodes"`
	Processes int     `json:"processes"`
	Seconds   float64 `json:"seconds"`
	Percent   float64 `json:"cpu_percent"` // of one processor
	Resident  int64   `json:"resident_bytes"`
}

// Traced is 4 KiB into absent memory (p1, polling) with the probe attached, beside the
// same detached: medians with their intervals of 95 %.
type Traced struct {
	Attached           string  `json:"attached"`
	Latency            float64 `json:"latency_us"`
	Added              float64 `json:"added_percent"`
	AddedLow           float64 `json:"added_percent_low"`
	AddedHigh          float64 `json:"added_percent_high"`
	Processor          float64 `json:"pfd_cpu_us"` // of pfd, for one fault
	AddedProcessor     float64 `json:"added_cpu_us"`
	AddedProcessorLow  float64 `json:"added_cpu_us_low"`
	AddedProcessorHigh float64 `json:"added_cpu_us_high"`
}
