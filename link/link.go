// Package link carries frames between the pfds of several hosts (spec/hosts.md). A link to another
// host is two TCP connections with TLS 1.3: one for frames that must not wait behind data, and one
// for the rest. The package does not dial and does not listen: it asks for connections by Wants and
// takes connected sockets by Take, so that its process needs no access to a network.
//
// The package repeats nothing. A connection that breaks loses what was under way, and the firmware
// of the nodes retransmits it when the link is up again.
package link

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/wire"
)

// Limits (defined by this project).
const (
	// MaxTell is the largest message of Tell, in bytes.
	MaxTell = 256
	// MaxHosts is the largest number of hosts in a table.
	MaxHosts = 1024
)

// Errors of the methods of Links. Match them with errors.Is.
var (
	// ErrTable means that a table is not valid, or contradicts the identity of this pfd.
	ErrTable = errors.New("link: the table of hosts is refused")
	// ErrHost means that no other host of the table has this name.
	ErrHost = errors.New("link: no such host")
	// ErrDown means that the link to the host is not up.
	ErrDown = errors.New("link: the link is down")
	// ErrFull means that the link's queue is full.
	ErrFull = errors.New("link: the queue of the link is full")
	// ErrSize means that a message is longer than MaxTell.
	ErrSize = errors.New("link: the message is too long")
)

// Sink takes what arrives. An emu.Engine is one. Its methods must return without waiting for
// anything, and must not call Links.
type Sink interface {
	// Arrive takes a batch of frames. The frames and their payloads are the sink's until it calls
	// done, which it must do once, on any goroutine. done does not block. Arrive is called on the
	// goroutine that reads the connection.
	Arrive(frames []*wire.Frame, done func())
	// LinkReady says that the nodes first to last can, or cannot, be sent frames now. It is called
	// with true when a link comes up, with false before anything of a link is lost, and with false
	// and true when the queue of a link becomes full and is half empty.
	LinkReady(first, last device.NodeID, ready bool)
	// Gone says that the host of the nodes first to last is no longer in the table: nothing will
	// reach them until LinkReady says so.
	Gone(first, last device.NodeID)
}

// Config configures Links.
type Config struct {
	// Identity has the numbers that this pfd was started with. A table must agree with it.
	Identity Identity
	Log      *slog.Logger // nil: nothing is logged
	// Told is called with each message that another host sent by Tell, in the order in which that
	// host sent them. The message is valid during the call. Nil: messages are dropped.
	Told func(host string, message []byte)
	// Changed is called when the link to a host comes up, and when it goes down after all calls of
	// Told. Nil: not called. Told and Changed delay only the link that calls them.
	Changed func(host string, up bool)
	Timing  Timing // zero fields: the defaults
}

// Timing has the times of the links. Zero means the default.
type Timing struct {
	// Heartbeat is the time between two heartbeats of a connection; 1 s. A connection on which no
	// byte arrives during three of them ends.
	Heartbeat time.Duration
	// Handshake is the time that a new connection may take until it is part of a link; 5 s.
	Handshake time.Duration
	// Unreachable is the time after which a host without a link counts as unreachable; 5 s.
	Unreachable time.Duration
	// BackoffMin and BackoffMax are the shortest and the longest time between two Wants for one
	// connection; 100 ms and 5 s.
	BackoffMin, BackoffMax time.Duration
}

// Want asks for one connection to a host. The receiver answers by Take, by TakeUDP, or, if it
// could not connect, by Failed. It may be asked again before it has answered, and then need not
// dial twice at once.
type Want struct {
	Host string
	UDP  bool // a connected UDP socket is wanted, not a TCP connection
}

// Links are the links of a pfd to all other hosts. Its methods may be called on any goroutine,
// except where they say otherwise.
type Links struct {
	cfg   Config
	wants chan Want
}

// New returns the links of a pfd. They are down until Run is called and SetTable has named hosts.
func New(cfg Config) *Links {
	return &Links{cfg: cfg, wants: make(chan Want, 2*MaxHosts)}
}

// Run carries frames until ctx is done. It returns when all connections are closed and all
// goroutines have ended. It must be called once.
func (l *Links) Run(ctx context.Context, sink Sink) error {
	<-ctx.Done()
	return nil
}

// SetTable replaces the table of hosts. It returns ErrTable, with the values of both sides, if the
// table contradicts the identity of this pfd or itself; then the former table stays in use. A host
// that the new table does not have is gone. Links that the new credentials or the revoked
// certificates do not permit end. Connections that lack are asked for again at once, also if the
// table is the same as before.
func (l *Links) SetTable(t Table) error { return nil }

// Take takes a connected socket. dialed is the host that was dialed, "" if the connection was
// accepted. Take returns at once and closes c if it is of no use.
func (l *Links) Take(c net.Conn, dialed string) { _ = c.Close() }

// TakeUDP takes a UDP socket that is connected to a host of the table. It replaces the socket
// before it.
func (l *Links) TakeUDP(host string, c net.Conn) { _ = c.Close() }

// Wants returns the channel of connections that lack. Only the host with the lower node ids asks
// for TCP connections.
func (l *Links) Wants() <-chan Want { return l.wants }

// Failed says that a connection that was wanted could not be made, and why. The text becomes
// the last error of the link in Info.
func (l *Links) Failed(host string, udp bool, text string) {}

// Reaches reports whether id is a node of another host of the table, whether its link is up or not.
func (l *Links) Reaches(id device.NodeID) bool { return false }

// Send sends a frame to a node of another host. It never blocks and copies what it keeps. A frame
// for a link that is down, or whose queue is full, is dropped and counted. Send must be called on
// one goroutine at a time.
func (l *Links) Send(f *wire.Frame) {}

// Info returns the state of all links, in the order of their nodes.
func (l *Links) Info() []Info { return nil }

// Cut ends the connections to a host and lets none be made for a time. It is for tests.
func (l *Links) Cut(host string, d time.Duration) error { return ErrHost }

// Drain with on true says that no new transfers to a host should begin (Draining reports that to
// the engine); with on false that they may again.
func (l *Links) Drain(host string, on bool) error { return ErrHost }

// Tell sends a message to the pfd of another host. Messages to one host arrive in order. Those that
// were not delivered when the link broke are lost: Config.Changed says so to both sides.
func (l *Links) Tell(host string, message []byte) error { return ErrHost }
