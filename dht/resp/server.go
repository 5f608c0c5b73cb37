// Package resp serves tables of package dht to clients of Redis, by version 2 of its protocol.
//
// Source: the Redis serialization protocol specification (RESP), and the pages of the commands at
// redis.io, of which docs/dht.md lists those that are served.
package resp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/exanet/pfd/dht"
)

// A Server serves one table.
type Server struct {
	// Tables are handles of the table, of a thread each. An operation uses the next one.
	Tables []*dht.Table

	turn    atomic.Uint64
	clients atomic.Int64
	served  atomic.Uint64
}

// table returns a handle for the next operation.
func (s *Server) table() *dht.Table { return s.Tables[s.turn.Add(1)%uint64(len(s.Tables))] }

// Serve serves the clients that connect, until the context ends or the listener fails; then it ends
// their connections, and returns when they have ended.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		c, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOBUFS), errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.ECONNABORTED):
			time.Sleep(acceptPause) // a client that ends makes room
			continue
		case err != nil:
			return fmt.Errorf("accept a client: %w", err)
		case s.clients.Load() >= MaxClients:
			_ = c.SetWriteDeadline(time.Now().Add(acceptPause))
			_, _ = c.Write(appendError(nil, "ERR max number of clients reached"))
			_ = c.Close()
			continue
		}
		s.clients.Add(1)
		clients.Go(func() {
			defer s.clients.Add(-1)
			defer context.AfterFunc(ctx, func() { c.Close() })()
			defer c.Close()
			s.Client(ctx, patient{c})
		})
	}
}

// Limits of clients. Defined by this project.
const (
	// MaxClients is how many clients are connected at once, at most.
	MaxClients = 4096

	acceptPause   = 20 * time.Millisecond
	writePatience = 30 * time.Second // a client that reads nothing of its answers for so long is disconnected
	largestKept   = 64 << 10         // bytes of an answer's buffer that is used again
)

// patient is a connection whose writes end.
type patient struct{ net.Conn }

func (p patient) Write(b []byte) (int, error) {
	if err := p.SetWriteDeadline(time.Now().Add(writePatience)); err != nil {
		return 0, err
	}
	return p.Conn.Write(b)
}

// batch is how many commands of one client are under way at once, at most.
const batch = 32

// Client serves one client until its connection ends. Gets that it sent without waiting for answers are
// performed at once; each other command waits for those before it.
func (s *Server) Client(ctx context.Context, c io.ReadWriter) error {
	r, w := bufio.NewReaderSize(c, 16<<10), bufio.NewWriterSize(c, 16<<10)
	var answers [batch][]byte
	var commands [][][]byte
	for {
		var err error
		commands, err = readBatch(r, commands[:0])
		s.served.Add(uint64(len(commands)))
		quit := s.perform(ctx, commands, &answers)
		for i := range commands {
			w.Write(answers[i])
			if cap(answers[i]) > largestKept {
				answers[i] = nil
			}
		}
		if p := (*ProtocolError)(nil); errors.As(err, &p) && !quit {
			w.Write(appendError(nil, "ERR "+p.Error()))
		}
		if next, _ := r.Peek(r.Buffered()); !whole(next) || err != nil || quit {
			if flushed := w.Flush(); flushed != nil {
				return flushed
			}
		}
		switch {
		case quit || errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// readBatch reads a command, and those that have arrived behind it as a whole.
func readBatch(r *bufio.Reader, commands [][][]byte) ([][][]byte, error) {
	for {
		c, err := ReadCommand(r)
		if err != nil {
			return commands, err
		}
		if len(c) > 0 {
			commands = append(commands, c)
		}
		if b, _ := r.Peek(r.Buffered()); len(commands) == batch || !whole(b) {
			return commands, nil
		}
	}
}

// perform performs commands, and reports whether the connection ends. Those that read one key run at once;
// each other one waits for all before it, so that others see the client's writes in their order.
func (s *Server) perform(ctx context.Context, commands [][][]byte, answers *[batch][]byte) (quit bool) {
	var under sync.WaitGroup
	defer under.Wait()
	for i := range commands {
		answers[i] = answers[i][:0]
	}
	for i, c := range commands {
		name := strings.ToUpper(string(c[0]))
		f, ok := verbs[name]
		switch {
		case name == "POST" || name == "HOST:": // a browser sends a page's form here
			return true
		case !ok:
			answers[i] = appendError(answers[i], fmt.Sprintf("ERR unknown command '%.64s'", c[0]))
			continue
		case len(c) < f.least || len(c) > f.most:
			answers[i] = appendError(answers[i], fmt.Sprintf("ERR wrong number of arguments for '%s' command", strings.ToLower(string(c[0]))))
			continue
		}
		if f.reads && len(commands) > 1 {
			under.Go(func() { answers[i] = f.do(ctx, s, c, answers[i]) })
			continue
		}
		under.Wait()
		answers[i] = f.do(ctx, s, c, answers[i])
		if f.quits {
			return true
		}
	}
	return false
}
