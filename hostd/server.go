package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/exanet/pfd/internal/sdnotify"
	"github.com/exanet/pfd/internal/sockets"
	"github.com/exanet/pfd/link/handover"
)

// Values below are defined by this project.
const (
	// againFirst and againMost are the pauses before pfd is connected again: the first and the longest.
	againFirst = 50 * time.Millisecond
	againMost  = time.Second
	// dialsPerHost is how many dials of one host and kind may be in progress: a link has two
	// connections. Of further wants one is served after them.
	dialsPerHost = 2
)

// server hands sockets to pfd. All fields belong to the goroutine of run.
type server struct {
	o   *options
	log *slog.Logger
	*settings

	pfd    *handover.Conn // nil: not connected
	states map[string]string
	dials  map[handover.Want]int  // in progress
	more   map[handover.Want]bool // wanted while as many as may be are in progress
}

// fromPFD is a new connection to pfd, a message from it, or its end.
type fromPFD struct {
	conn *handover.Conn
	m    *handover.Message // nil: conn is new, or has ended with err
	err  error
}

// dialed is the result of a dial for a pfd.
type dialed struct {
	pfd  *handover.Conn
	want handover.Want
	conn net.Conn
	err  error
}

// run serves until ctx ends.
func (s *server) run(ctx context.Context, l net.Listener, hup <-chan os.Signal) error {
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	context.AfterFunc(ctx, func() { _ = l.Close() }) // ends accept; nothing is lost
	accepted, events, results := make(chan net.Conn), make(chan fromPFD), make(chan dialed)
	begin := func(pfd *handover.Conn, w handover.Want) {
		address, own, pause := s.addressOf(w), s.self.Address, attemptPause
		if s.states[w.Host] == "unreachable" {
			pause = unreachablePause
		}
		s.dials[w]++
		all.Go(func() {
			r := dialed{pfd: pfd, want: w}
			r.conn, r.err = dial(ctx, address, own, w.UDP, pause)
			select {
			case results <- r:
			case <-ctx.Done():
				if r.conn != nil {
					_ = r.conn.Close() // nothing was written to it
				}
			}
		})
	}
	trusted := s.file.TrustedNetwork() // after a change of it exanet-hostd must be restarted
	all.Go(func() { s.accept(ctx, l, trusted, accepted) })
	all.Go(func() { s.connect(ctx, events) })
	var dog <-chan time.Time
	if d := sdnotify.Watchdog(os.Getenv); d > 0 {
		tick := time.NewTicker(d / 2)
		defer tick.Stop()
		dog = tick.C
	}
	s.log.Info("listening", "host", s.o.name, "cluster", s.table.Cluster, "hosts", len(s.table.Hosts), "address", l.Addr().String(), "tls", s.table.TLS)
	s.notify("READY=1")
	for {
		select {
		case <-ctx.Done():
			s.notify("STOPPING=1")
			s.log.Info("ended")
			return nil
		case <-dog:
			s.notify("WATCHDOG=1")
		case <-hup:
			s.reload(l)
		case c := <-accepted:
			s.give(&handover.Socket{}, c)
		case e := <-events:
			s.handle(e, begin)
		case r := <-results:
			s.finish(r, begin)
		}
	}
}

// notify sends the state and a status line to the service manager.
func (s *server) notify(state string) {
	up := 0
	for _, st := range s.states {
		if st == "up" || st == "idle" { // the next frame brings it up
			up++
		}
	}
	pfd := "pfd is away"
	if s.pfd != nil {
		pfd = "pfd is connected"
	}
	if err := sdnotify.Send(fmt.Sprintf("%s\nSTATUS=host %s of %s: %s, %d of %d links up", state, s.o.name, s.table.Cluster, pfd, up, len(s.table.Hosts)-1)); err != nil {
		s.log.Warn("service manager not notified", "err", err)
	}
}

// reload reads the file again. After an error the old settings stay.
func (s *server) reload(l net.Listener) {
	s.notify(sdnotify.Reloading())
	defer s.notify("READY=1")
	set, err := s.o.again()
	if err != nil {
		s.log.Error("hosts not reloaded: the old list stays in effect", "err", err)
		return
	}
	if s.o.listen == "" && portOf(set.self.Address) != portOf(l.Addr().String()) {
		s.log.Warn("the port of this host has changed: restart exanet-hostd to listen there", "address", set.self.Address)
	}
	s.settings = set
	s.log.Info("hosts reloaded", "hosts", len(set.table.Hosts))
	s.giveTable()
}

// handle handles an event of the connection to pfd. It calls dial for a host that pfd wants.
func (s *server) handle(e fromPFD, dial func(*handover.Conn, handover.Want)) {
	switch {
	case e.m == nil && e.err == nil:
		pid, uid := e.conn.Peer()
		s.pfd = e.conn
		s.log.Info("connected to pfd", "pid", pid, "uid", uid)
		s.giveTable()
		s.notify("READY=1")
	case e.m == nil:
		s.log.Warn("pfd is away: its links have ended with it, or stay up without exanet-hostd", "err", e.err)
		s.pfd = nil
		clear(s.states)
		s.notify("READY=1")
	case e.m.Want != nil:
		w := *e.m.Want
		if s.addressOf(w) == "" {
			s.answer(&handover.Message{Failed: &handover.Failed{Host: w.Host, UDP: w.UDP, Text: "no other host of this name is in the list of exanet-hostd"}})
		} else if s.dials[w] < dialsPerHost {
			dial(e.conn, w)
		} else {
			s.more[w] = true
		}
	case e.m.Refused != nil:
		s.log.Error("pfd refuses the list of hosts: its flags or its pfd.toml contradict it", "file", s.o.file, "err", e.m.Refused.Text)
	case e.m.State != nil:
		if s.states[e.m.State.Host] != e.m.State.State && len(s.states) <= handover.MaxHosts {
			level := slog.LevelInfo
			if now := e.m.State.State; now == "idle" || now == "up" && s.states[e.m.State.Host] == "idle" {
				level = slog.LevelDebug // nothing is lost
			}
			s.log.Log(context.Background(), level, "link", "to", e.m.State.Host, "state", e.m.State.State)
			s.states[e.m.State.Host] = e.m.State.State
			s.notify("READY=1")
		}
	}
}

// addressOf returns the address of a host that pfd wants, "" if there is none.
func (s *server) addressOf(w handover.Want) string {
	for _, h := range s.table.Hosts {
		if h.Name == w.Host && h.Name != s.o.name {
			return h.Address
		}
	}
	return ""
}

// finish hands a dialed socket to the pfd that wanted it. After a failure it calls dial if pfd has wanted
// more meanwhile.
func (s *server) finish(r dialed, dial func(*handover.Conn, handover.Want)) {
	if s.dials[r.want]--; s.dials[r.want] == 0 {
		delete(s.dials, r.want)
	}
	more := s.more[r.want]
	delete(s.more, r.want)
	if r.pfd != s.pfd {
		if r.conn != nil {
			_ = r.conn.Close() // nothing was written to it
		}
		return
	}
	if r.err != nil {
		s.log.Debug("dial", "host", r.want.Host, "err", r.err)
		text := r.err.Error()
		s.answer(&handover.Message{Failed: &handover.Failed{Host: r.want.Host, UDP: r.want.UDP, Text: text[:min(len(text), handover.MaxText)]}})
		if more && s.addressOf(r.want) != "" {
			dial(r.pfd, r.want)
		}
		return
	}
	s.give(&handover.Socket{Dialed: r.want.Host, UDP: r.want.UDP}, r.conn)
}

// give hands a socket to pfd, and closes this program's descriptor of it.
func (s *server) give(what *handover.Socket, c net.Conn) {
	defer c.Close()
	sc, ok := c.(syscall.Conn)
	if s.pfd == nil || !ok {
		return // the peer dials again
	}
	if err := s.pfd.Send(&handover.Message{Socket: what}, sc); err != nil {
		s.failed(err, true)
	}
}

func (s *server) answer(m *handover.Message) {
	if s.pfd == nil {
		return
	}
	if err := s.pfd.Send(m, nil); err != nil {
		s.failed(err, true)
	}
}

// giveTable sends the table, and with TLS the credentials.
func (s *server) giveTable() {
	if s.pfd == nil {
		return
	}
	var file syscall.Conn
	if s.credentials != nil {
		f, err := s.credentials.Seal()
		if err != nil {
			s.failed(err, false)
			return
		}
		defer f.Close()
		file = f
	}
	if err := s.pfd.Send(&handover.Message{Table: s.table}, file); err != nil {
		s.failed(err, false)
	}
}

// failed handles a message that pfd did not take. If pfd does not read and the message is one that
// pfd asks for again, the connection is of further use. Else it ends, and the next one begins with
// the table.
func (s *server) failed(err error, repeated bool) {
	s.log.Warn("pfd does not take a message", "err", err)
	if !repeated || !errors.Is(err, os.ErrDeadlineExceeded) {
		_ = s.pfd.Close() // its reader reports the end
	}
}

// connect keeps a connection to pfd, and reads from it, until ctx ends.
func (s *server) connect(ctx context.Context, events chan<- fromPFD) {
	path := s.o.pfd + sockets.HostsSuffix
	trusted := func(uid uint32) bool { return trusts(path, uid, os.Geteuid()) }
	pause, told := againFirst, ""
	for ctx.Err() == nil {
		conn, err := handover.Dial(path, trusted)
		if err != nil {
			text := err.Error()
			level, why := slog.LevelInfo, sockets.Why(path, err)
			switch {
			case errors.Is(err, handover.ErrStranger):
				level, why = slog.LevelWarn, "exanet-hostd gives the key of this host only to a pfd of its own user, of root or of the service; as root also to one of the owner of the socket's directory: run both as one user"
			case errors.Is(err, fs.ErrPermission):
				level = slog.LevelWarn
				if why == "" {
					why = "run exanet-hostd as root, exanet-host or the user of pfd"
				}
			}
			if why != "" {
				text += ": " + why
			}
			if text != told {
				s.log.Log(ctx, level, "waiting for pfd", "err", text)
			}
			told = text
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			pause = min(2*pause, againMost)
			continue
		}
		unhook := context.AfterFunc(ctx, func() { _ = conn.Close() }) // ends read
		begin := time.Now()
		read(ctx, conn, events)
		unhook()
		// pfd may end each connection at once: back off as if there were none.
		if told = ""; time.Since(begin) > againMost {
			pause = againFirst
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, againMost)
	}
}

// read passes the messages of a connection on until its end.
func read(ctx context.Context, conn *handover.Conn, events chan<- fromPFD) {
	defer conn.Close()
	pass := func(e fromPFD) bool {
		select {
		case events <- e:
			return true
		case <-ctx.Done():
			return false
		}
	}
	if !pass(fromPFD{conn: conn}) {
		return
	}
	for {
		m, _, err := conn.Receive() // no message from pfd has a descriptor
		if errors.Is(err, io.EOF) {
			err = errors.New("pfd has ended, or another exanet-hostd has replaced this one")
		}
		if !pass(fromPFD{conn, m, err}) || err != nil {
			return
		}
	}
}
