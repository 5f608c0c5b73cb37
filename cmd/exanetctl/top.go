package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/config"
	"github.com/exanet/pfd/internal/live"
	"github.com/exanet/pfd/internal/maybe"
)

// topWidth and topHeight are the size of the smallest terminal for top. Values are defined by
// this project.
const (
	topWidth  = 80
	topHeight = 20
)

func (a *app) topCommand() *cobra.Command {
	var interval time.Duration
	var count int
	c := &cobra.Command{
		Use:   "top",
		Short: "Show transfers, faults, channels and FIFOs live",
		Long: `top shows the activity of a running pfd on a full screen: transfers, bytes and faults
per second of all nodes, of each node and of each domain; the stages of the newest
faults; the fault FIFOs with the highest level that pfd has found in them; and the
channels with a transfer in flight: how many of its blocks are acknowledged (#), in
flight (>), paused by a fault (!) and not yet issued (.).

Keys: s and S change the sort order, / filters, space pauses, arrows scroll, ? shows
help, q quits. If standard output is not a terminal, top prints a line per interval, with
-o json one JSON value per line. If pfd ends, the full screen waits for it to restart;
otherwise top ends with exit code 3.`,
		Args: maxArgs(0),
		RunE: a.asking(func(cmd *cobra.Command, c *control.Client, _ []string) error {
			switch {
			case interval < watchMin:
				return usagef("--interval %v: want %v or more", interval, watchMin)
			case count < 0:
				return usagef("--count %d: want 0 (until interrupted) or more", count)
			case a.format == formatCSV:
				return usagef("-o csv: top shows a screen, or lines of text or JSON")
			}
			f := live.Follow(c)
			// If pfd is not running, the error comes before the full screen.
			v, err := f.Next(cmd.Context())
			if err != nil {
				return err
			}
			if terminal(a.out) && !a.wantJSON() && count == 0 {
				return a.topScreen(cmd.Context(), f, v, interval)
			}
			return a.topLines(cmd.Context(), f, v, interval, count)
		}),
	}
	c.Flags().DurationVar(&interval, "interval", time.Second, "time between two updates")
	c.Flags().IntVarP(&count, "count", "n", 0, "print this many lines and end")
	return c
}

// topLines prints a line for each interval.
func (a *app) topLines(ctx context.Context, f *live.Follower, v live.View, interval time.Duration, count int) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for n := 0; count == 0 || n < count; n++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		v, err := f.Next(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case a.wantJSON():
			err = a.printJSON(v)
		default:
			err = a.println(topLine(&v))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// topLine summarizes a view in a line of somewhat more than 80 columns.
func topLine(v *live.View) string {
	inFlight, paused, most := 0, 0, -1
	for _, c := range v.Channels {
		inFlight += c.InFlight
		paused += c.Paused
	}
	for _, f := range v.FIFOs {
		most = max(most, f.Highest)
	}
	highest := "-" // pfd does not show it to this user
	if most >= 0 {
		highest = strconv.Itoa(most)
	}
	p50 := unmeasured
	if n := len(v.Stages); n > 0 {
		p50 = micros(v.Stages[n-1].P50NS)
	}
	channels := fmt.Sprintf("channels=%d in_flight=%d paused=%d", len(v.Channels), inFlight, paused)
	if !v.Status.SeesAll && len(v.Domains) == 0 {
		channels = "channels=- in_flight=- paused=-"
	}
	return fmt.Sprintf("%s transfers/s=%s failed/s=%s bytes/s=%s faults/s=%s p50_us=%s %s fifo_highest=%s",
		v.Time.Format(time.TimeOnly), rate(v.Total.Transfers), rate(v.Total.Failed), rate(v.Total.Bytes), rate(v.Total.Faults), p50, channels, highest)
}

// rate returns the cell of a number per second, with up to three digits and a decimal prefix.
func rate(n maybe.Number) quantity {
	if !n.Known() {
		return unmeasured
	}
	text, value := "", float64(n)
	for _, u := range []string{"", "k", "M", "G", "T"} {
		if value < 999.5 || u == "T" {
			digits := 0
			if value < 9.95 && (u != "" || value != math.Trunc(value)) {
				digits = 1
			}
			text = strconv.FormatFloat(value, 'f', digits, 64) + u
			break
		}
		value /= 1000
	}
	return quantity{n: float64(n), text: text}
}

// topScreen follows pfd on the terminal until the user quits.
func (a *app) topScreen(ctx context.Context, f *live.Follower, v live.View, interval time.Duration) error {
	m := &screen{a: a, view: v, next: func() (live.View, error) { return f.Next(ctx) }, interval: interval}
	_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(a.in), tea.WithOutput(a.out), tea.WithoutSignalHandler()).Run()
	if err != nil && ctx.Err() == nil && !errors.Is(err, tea.ErrInterrupted) {
		return fmt.Errorf("the terminal: %w: use `exanetctl top -o json`", err)
	}
	return nil
}

// screen is the state of the full screen: the newest view and the user's choices.
type screen struct {
	a        *app
	next     func() (live.View, error)
	interval time.Duration

	view          live.View
	err           error // of the last update; if it is not nil, the view is older
	width, height int
	paused, help  bool
	sort          int // index into sorts
	reverse       bool
	filter        string
	typing        bool // the user is typing the filter
	scroll        int  // number of lines of the lists above the first one shown
}

// sorts are the columns by which the lists can be sorted, in descending order.
var sorts = []string{"", "MB/S", "TRANSFERS/S", "FAULTS/S", "IN_FLIGHT", "PAUSED", "AGE"}

// Messages to Update: the result of an update, and that the next one is due.
type (
	looked struct {
		view live.View
		err  error
	}
	due struct{}
)

func (s *screen) look() tea.Msg {
	v, err := s.next()
	return looked{v, err}
}

func (s *screen) wait() tea.Cmd {
	return tea.Tick(s.interval, func(time.Time) tea.Msg { return due{} })
}

// Init implements tea.Model.
func (s *screen) Init() tea.Cmd { return s.wait() }

// Update implements tea.Model.
func (s *screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		s.width, s.height = msg.Width, msg.Height
	case due:
		if s.paused {
			return s, s.wait()
		}
		return s, s.look
	case looked:
		if s.err = msg.err; s.err == nil && !s.paused {
			s.view = msg.view
		}
		return s, s.wait()
	case tea.KeyPressMsg:
		return s, s.key(msg)
	}
	return s, nil
}

// key handles a key.
func (s *screen) key(k tea.KeyPressMsg) tea.Cmd {
	name := k.String()
	if name == "ctrl+c" {
		return tea.Quit
	}
	if s.typing {
		switch name {
		case "enter":
			s.typing = false
		case "esc":
			s.typing, s.filter = false, ""
		case "backspace":
			r := []rune(s.filter)
			s.filter = string(r[:max(len(r)-1, 0)])
		default:
			s.filter += k.Text
		}
		s.scroll = 0
		return nil
	}
	if s.help {
		s.help = false
		return nil
	}
	switch name {
	case "q":
		return tea.Quit
	case "esc":
		s.filter = ""
	case "space", "p":
		s.paused = !s.paused
	case "s":
		s.sort = (s.sort + 1) % len(sorts)
	case "S":
		s.reverse = !s.reverse
	case "/", "f":
		s.typing = true
	case "?", "h":
		s.help = true
	case "up", "k":
		s.scroll--
	case "down", "j":
		s.scroll++
	case "pgup":
		s.scroll -= s.height / 2
	case "pgdown":
		s.scroll += s.height / 2
	case "home", "g":
		s.scroll = 0
	}
	return nil
}

// View implements tea.Model.
func (s *screen) View() tea.View {
	v := tea.NewView(s.text())
	v.AltScreen = true
	v.WindowTitle = "exanetctl top"
	return v
}

const topKeys = `Keys
  s        sort by the next column: MB/S, TRANSFERS/S, FAULTS/S, IN_FLIGHT, PAUSED, AGE
  S        reverse the order
  /        show only domains and channels whose line contains a text; esc shows all
  space    pause or continue
  up, down, pgup, pgdown, home    scroll domains and channels
  q        quit

Channels  # acknowledged   > in flight   ! paused by a page fault   . not yet issued
Stages    drain: interrupt until FIFO entry read; queue: until page-in begins;
          page_in: until page resident; answer: until block requested again
FIFOs     RXFIFO has faults of destinations, TXFIFO of sources. "level, highest":
          now, and the most that pfd has found; "!": an entry was lost

Press any key to return.`

// text returns the whole screen, as high as the terminal.
func (s *screen) text() string {
	switch {
	case s.width == 0:
		return "" // before its size is known
	case s.width < topWidth || s.height < topHeight:
		return fmt.Sprintf("This terminal is %dx%d: top needs\n%dx%d. Enlarge it, or quit (q)\nand run `exanetctl top -o json`.", s.width, s.height, topWidth, topHeight)
	case s.help:
		return topKeys
	}
	lines := append(s.head(), "")
	lines = append(lines, s.stages()...)
	lines = append(lines, "")
	lines = append(lines, s.nodes()...)
	lines = append(lines, "")
	lists := append(s.domains(), "")
	lists = append(lists, s.channels()...)
	room := s.height - len(lines) - 1
	s.scroll = min(max(s.scroll, 0), max(len(lists)-room, 0))
	lists = lists[s.scroll:]
	below := len(lists) - room
	lines = append(lines, lists[:min(len(lists), room)]...)
	for len(lines) < s.height-1 {
		lines = append(lines, "")
	}
	return strings.Join(append(lines, s.foot(below)), "\n")
}

func (s *screen) head() []string {
	v := &s.view
	first := fmt.Sprintf("%s, up %s, %s, %s, %s pinned", v.Status.State,
		time.Duration(v.Status.UptimeNS).Round(time.Second), plural(len(v.Nodes), "node"), plural(len(v.Domains), "domain"), pinnedCell(v.Status.PinnedBytes))
	if scope := scopeOf(&v.Status); scope != "" {
		first += ": " + scope
	}
	second := fmt.Sprintf("%s transfers/s  %s failed/s  %s MB/s  %s faults/s  %s retransmits/s", rate(v.Total.Transfers), rate(v.Total.Failed), megabytes(v.Total.Bytes), rate(v.Total.Faults), rate(v.Total.Retransmits))
	if s.err != nil {
		first, second = "no answer, retrying every "+s.interval.String(), "before that: "+second
		if errors.Is(s.err, control.ErrForbidden) {
			first = "no answer"
		}
	} else if v.Seconds == 0 {
		second = "rates are known after the second update"
	}
	state := v.Time.Format(time.TimeOnly)
	if s.paused {
		state = "PAUSED " + state
	}
	// The version is left out if it would need another line.
	if whole := "pfd " + v.Status.DaemonVersion + ", " + first; len(whole) < s.width-len(state) {
		first = whole
	} else {
		first = "pfd: " + first
	}
	var lines []string
	for _, line := range strings.Split(config.Wrap(first, s.width-len(state)-1), "\n") {
		lines = append(lines, bold(fit(line, s.width-len(state)-1)+" "+state))
		state = strings.Repeat(" ", len(state))
	}
	for _, line := range strings.Split(config.Wrap(second, s.width), "\n") {
		lines = append(lines, bold(fit(line, s.width)))
	}
	if s.err != nil {
		for _, line := range strings.Split(config.Wrap(s.err.Error(), s.width), "\n") {
			lines = append(lines, red+strings.TrimRight(fit(line, s.width), " ")+plain)
		}
	}
	return lines
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return strconv.Itoa(n) + " " + word + "s"
}

func bold(text string) string { return "\x1b[1m" + text + plain }

// fit pads or cuts a text to a width.
func fit(text string, width int) string {
	r := []rune(text)
	if len(r) > width {
		return string(r[:width])
	}
	return text + strings.Repeat(" ", width-len(r))
}

// lines renders a table for this screen, with a bold header.
func (s *screen) lines(t *table, keep func(string) bool) []string {
	var out strings.Builder
	a := *s.a
	a.out, a.columns, a.sort, a.format = &out, nil, nil, formatTable
	a.err = &strings.Builder{} // the number of omitted columns is not shown
	a.getenv = func(key string) string {
		if key == "COLUMNS" {
			return strconv.Itoa(s.width)
		}
		return s.a.getenv(key)
	}
	if by := sorts[s.sort]; by != "" && slices.Contains(t.head, by) {
		if a.sort = []string{"-" + by}; s.reverse {
			a.sort = []string{by}
		}
	}
	t.a = &a
	if err := t.flush(); err != nil {
		return []string{err.Error()} // a Builder has no errors
	}
	lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
	head, rows := bold(lines[0]), lines[1:]
	if keep != nil {
		rows = slices.DeleteFunc(rows, func(l string) bool { return !keep(l) })
	}
	return append([]string{head}, rows...)
}

// matches reports whether a line passes the filter.
func (s *screen) matches(line string) bool {
	return strings.Contains(strings.ToLower(line), strings.ToLower(s.filter))
}

func (s *screen) stages() []string {
	st := s.view.Stages
	if len(st) == 0 {
		return []string{bold("STAGES"), noStages}
	}
	t := s.a.table("STAGE", "P50_US", "P99_US", fmt.Sprintf("MEDIAN_OF_%d", st[0].Faults))
	t.stages(st, int64(s.width-40))
	return s.lines(t, nil)
}

func (s *screen) nodes() []string {
	t := s.a.table("NODE", "TRANSFERS/S", "MB/S", "FAULTS/S", "RETRANSMITS/S", "RXFIFO", "TXFIFO", "DEPTH")
	t.spare = []string{"DEPTH"}
	for _, n := range s.view.Nodes {
		fifo := map[string]string{}
		for _, f := range s.view.FIFOs {
			if f.Node != n.Index {
				continue
			}
			text := fmt.Sprintf("%d, %d", f.Level, f.Highest)
			if f.Highest < 0 {
				text = strconv.Itoa(f.Level)
			}
			if f.Overflow {
				text += "!"
			}
			fifo[f.Name] = text
		}
		r := n.Rates
		t.add(n.Index, rate(r.Transfers), megabytes(r.Bytes), rate(r.Faults), rate(r.Retransmits), fifo["rxfifo"], fifo["txfifo"], n.FIFODepth)
	}
	return s.lines(t, nil)
}

func megabytes(bytes maybe.Number) quantity {
	return quantity{n: float64(bytes / 1e6), text: (bytes / 1e6).Text(1)}
}

func (s *screen) domains() []string {
	if len(s.view.Domains) == 0 {
		return []string{bold("DOMAINS"), "no process is attached"}
	}
	t := s.a.table("DOMAIN", "PID", "GROUP", "METHOD", "TRANSFERS/S", "MB/S", "FAULTS/S", "CHANNELS", "IN_FLIGHT", "PAUSED", "STATE")
	t.spare = []string{"STATE", "METHOD", "GROUP", "PID"}
	for _, d := range s.view.Domains {
		r := d.Rates
		t.add(fmt.Sprintf("%d/%d", d.Node, d.Slot), d.PID, d.Group, d.Method, rate(r.Transfers), megabytes(r.Bytes), rate(r.Faults), d.Ongoing, d.InFlight, d.Paused, d.State)
	}
	return s.lines(t, s.matches)
}

func (s *screen) channels() []string {
	if len(s.view.Channels) == 0 {
		return []string{bold("CHANNELS"), "no transfer is in flight"}
	}
	const bar = 20
	t := s.a.table("CHANNEL", "TO", "CLASS", "SIZE", "BLOCKS", "ACKED", "IN_FLIGHT", "PAUSED", "RESENT", "AGE", "PROGRESS")
	t.spare = []string{"TO", "CLASS", "RESENT", "BLOCKS", "ACKED", "AGE"}
	for i := range s.view.Channels {
		c := &s.view.Channels[i]
		t.add(fmt.Sprintf("%d/%d/%d", c.Node, c.Slot, c.Channel), nodeID(c.DstNode), c.Class, bytesCell(c.SizeBytes), c.Blocks, c.Acked,
			c.InFlight, c.Paused, c.Retransmitted, duration(c.AgeNS, time.Millisecond), progressOf(c, bar))
	}
	return s.lines(t, s.matches)
}

// progressOf draws the states of a transfer's blocks. Each state that has blocks has at least
// one character.
func progressOf(c *control.Channel, width int) string {
	line := []byte(strings.Repeat(".", width))
	at := 0
	for _, part := range []struct {
		blocks int
		char   byte
	}{{c.Acked, '#'}, {c.InFlight - c.Paused, '>'}, {c.Paused, '!'}} {
		if part.blocks <= 0 {
			continue
		}
		for n := max(part.blocks*width/max(c.Blocks, 1), 1); n > 0 && at < width; n-- {
			line[at] = part.char
			at++
		}
	}
	return string(line)
}

func (s *screen) foot(below int) string {
	if s.typing {
		return fit("filter: "+s.filter+"_   enter keeps it, esc shows all", s.width)
	}
	words := []string{"q quit", "s sort", "/ filter", "space pause", "? help"}
	if by := sorts[s.sort]; by != "" {
		order := "down"
		if s.reverse {
			order = "up"
		}
		words = append(words, "by "+by+" "+order)
	}
	if s.filter != "" {
		words = append(words, "only "+strconv.Quote(s.filter))
	}
	if below > 0 {
		words = append(words, plural(below, "line")+" below")
	}
	return fit(strings.Join(words, "   "), s.width)
}
