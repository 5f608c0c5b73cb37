package hostile

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/control"
)

// The log accepts this many lines of a kind at once, then one a second. A kind is a place in
// the program, a reason and a uid (internal/logs).
const logBurst = 20

// floodLog makes pfd log n lines: refusals of several reasons, and attachments that end at
// once. It retries what pfd refuses without a line because earlier attachments are still
// ending.
func (a *obedient) floodLog(socket string, n uint64) (int, error) {
	good, err := (&attach.Hello{Product: "liar 1", Group: "liar"}).Append(nil)
	if err != nil {
		return 0, err
	}
	ctx, cancel := within(patience)
	defer cancel()
	for i := uint64(0); i < n; {
		c, err := attach.Dial(ctx, socket)
		if err != nil {
			return int(i), err
		}
		m := append([]byte(nil), good...)
		switch i % 4 {
		case 0:
			m = m[:100]
		case 1:
			m[2] = 200 // another protocol
		case 2:
			m[0] = 77 // an unknown type
		}
		var buf [attach.MaxMessage]byte
		size := 0
		if err = c.Send(m); err == nil {
			var fds attach.Descriptors
			size, fds, err = c.Receive(ctx, buf[:])
			fds.Close()
		}
		_ = c.Close()
		refused, _ := attach.DecodeRefused(buf[:size]) // nil: another message
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, unix.EPIPE), refused != nil && refused.Code == attach.CodeBusy:
			time.Sleep(time.Millisecond)
			continue
		case err != nil:
			return int(i), err
		}
		i++
	}
	return int(n), nil
}

var (
	logUID  = regexp.MustCompile(`\buid=(\d+)`)
	logKind = regexp.MustCompile(`\b(msg=("[^"]*"|\S+))(?:.*\b(reason=("[^"]*"|\S+)))?`)
)

// said counts the lines that a uid has caused, by message and reason.
func (w *world) said(uid int) map[string]int {
	kinds := map[string]int{}
	for line := range strings.Lines(w.stderr.String()) {
		if m := logUID.FindStringSubmatch(line); m != nil && m[1] == strconv.Itoa(uid) {
			k := logKind.FindStringSubmatch(line)
			if k == nil {
				k = []string{"", line, "", ""}
			}
			kinds[k[1]+" "+k[3]]++
		}
	}
	return kinds
}

// metric returns a sample of /metrics without labels.
func (w *world) metric(name string) uint64 {
	w.t.Helper()
	text, err := w.Metrics(w.ctx())
	if err != nil {
		w.t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
			if err != nil {
				w.t.Fatal(err)
			}
			return uint64(n)
		}
	}
	w.t.Fatalf("metric %s is missing", name)
	return 0
}

// A user who floods the log suppresses only its own lines of that kind. The suppressed lines
// are counted and reported.
func TestLogFlood(t *testing.T) {
	needRoot(t, "a flood by another user needs one")
	const liar, honest, times = 3001, 3002, 2000
	begin := time.Now()
	w := start(t)
	b := w.bystander(attachOrder{UID: 3000})
	flood := w.spawn("flood", liar)
	over := make(chan error, 1)
	go func() {
		r, err := flood.do(order{Op: "flood", Kind: "log", Path: control.AttachSocket(w.socket()), Size: times})
		if err == nil && (r.Err != "" || r.Count != times) {
			err = fmt.Errorf("%d of %d: %s", r.Count, times, r.Err)
		}
		over <- err
	}()
	// Meanwhile the log has the usual lines about others.
	const others = logBurst / 2
	for range others {
		w.attach("honest", attachOrder{UID: honest}).kill()
	}
	if err := <-over; err != nil {
		t.Fatal(err)
	}
	w.until("the honest user's attachments are in the log", func() bool {
		attached := 0
		for kind, n := range w.said(honest) {
			if strings.HasPrefix(kind, "msg=attached") {
				attached += n
			}
		}
		return attached == others
	})
	held := w.metric("exanet_log_lines_held_back_total")
	limit := logBurst + int(time.Since(begin)/time.Second) + 1
	lines := 0
	for kind, n := range w.said(liar) {
		t.Logf("%4d lines %s", n, kind)
		if lines += n; n > limit {
			t.Errorf("%d lines of the kind %s in %v, at most %d are allowed", n, kind, time.Since(begin), limit)
		}
	}
	// A refusal is one line, an attachment two: at its beginning and its end.
	if want := uint64(times - lines); held < want {
		t.Errorf("%d lines held back and %d written, of %d at least", held, lines, times)
	}
	if n := w.metric("exanet_log_lines_lost_total"); n != 0 {
		t.Errorf("%d lines were lost", n)
	}
	t.Logf("%d lines written of the flood, %d held back", lines, held)
	// The next line of the kind reports how many were suppressed.
	w.until("the log reports the suppressed lines", func() bool {
		flood.must(order{Op: "flood", Kind: "log", Path: control.AttachSocket(w.socket()), Size: 4})
		return regexp.MustCompile(fmt.Sprintf(`uid=%d.* suppressed=\d{3}`, liar)).MatchString(w.stderr.String())
	})
	b.fine()
}
