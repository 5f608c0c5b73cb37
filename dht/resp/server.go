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
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accept a client: %w", err)
		}
		clients.Go(func() {
			defer context.AfterFunc(ctx, func() { c.Close() })()
			defer c.Close()
			s.clients.Add(1)
			defer s.clients.Add(-1)
			s.Client(ctx, c)
		})
	}
}

// batch is how many commands of one client are under way at once, at most.
const batch = 32

// Client serves one client until its connection ends. Commands that it sent without waiting for answers
// are performed at once if no two of them name one key; the answers are in the order of the commands.
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
		if b, _ := r.Peek(r.Buffered()); len(commands) == batch || len(commands) > 0 && !whole(b) {
			return commands, nil
		}
	}
}

// perform performs commands, and reports whether the client asked for the end. Those with one key run at
// once as long as no key comes twice; each other one waits for all before it.
func (s *Server) perform(ctx context.Context, commands [][][]byte, answers *[batch][]byte) (quit bool) {
	var under sync.WaitGroup
	defer under.Wait()
	keys := make(map[string]bool, len(commands))
	for i, c := range commands {
		f, ok := verbs[strings.ToUpper(string(c[0]))]
		answers[i] = answers[i][:0]
		switch {
		case !ok:
			answers[i] = appendError(answers[i], fmt.Sprintf("ERR unknown command '%.64s'", c[0]))
			continue
		case len(c) < f.least || len(c) > f.most:
			answers[i] = appendError(answers[i], fmt.Sprintf("ERR wrong number of arguments for '%s' command", strings.ToLower(string(c[0]))))
			continue
		}
		if !f.oneKey || keys[string(c[1])] {
			under.Wait()
			clear(keys)
		}
		if !f.oneKey || len(commands) == 1 {
			answers[i] = f.do(ctx, s, c, answers[i])
			if f.quits {
				for j := i + 1; j < len(commands); j++ {
					answers[j] = answers[j][:0]
				}
				return true
			}
			continue
		}
		keys[string(c[1])] = true
		under.Go(func() { answers[i] = f.do(ctx, s, c, answers[i]) })
	}
	return false
}
