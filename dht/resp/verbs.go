package resp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"

	"github.com/exanet/pfd/dht"
	"github.com/exanet/pfd/gsas"
)

// A verb is a command that is served. It has least to most words, its name among them.
type verb struct {
	least, most int
	reads       bool // changes nothing
	quits       bool
	do          func(ctx context.Context, s *Server, c [][]byte, b []byte) []byte
}

// verbs are the commands by their names.
var verbs = map[string]verb{
	"PING":    {least: 1, most: 2, do: ping},
	"ECHO":    {least: 2, most: 2, do: ping},
	"HELLO":   {least: 1, most: 2, do: hello},
	"QUIT":    {least: 1, most: 1, quits: true, do: okay},
	"SELECT":  {least: 2, most: 2, do: selectDB},
	"COMMAND": {least: 1, most: MaxArguments, do: command},
	"CONFIG":  {least: 3, most: MaxArguments, do: config},
	"INFO":    {least: 1, most: MaxArguments, do: info},
	"DBSIZE":  {least: 1, most: 1, do: size},
	"GET":     {least: 2, most: 2, reads: true, do: get},
	"SET":     {least: 3, most: MaxArguments, do: set},
	"INCR":    {least: 2, most: 2, do: increment},
	"DECR":    {least: 2, most: 2, do: increment},
	"INCRBY":  {least: 3, most: 3, do: increment},
	"DECRBY":  {least: 3, most: 3, do: increment},
	"MGET":    {least: 2, most: MaxArguments, reads: true, do: getAll},
	"DEL":     {least: 2, most: MaxArguments, do: remove},
	"EXISTS":  {least: 2, most: MaxArguments, reads: true, do: exists},
}

func okay(_ context.Context, _ *Server, _ [][]byte, b []byte) []byte { return appendSimple(b, "OK") }

func ping(_ context.Context, _ *Server, c [][]byte, b []byte) []byte {
	if len(c) == 1 {
		return appendSimple(b, "PONG")
	}
	return appendBulk(b, c[1])
}

func hello(_ context.Context, _ *Server, c [][]byte, b []byte) []byte {
	if len(c) == 2 && string(c[1]) != "2" {
		return appendError(b, "NOPROTO unsupported protocol version: version 2 is served")
	}
	b = appendArray(b, 8)
	for _, s := range []string{"server", "exanet-dht", "proto"} {
		b = appendBulk(b, []byte(s))
	}
	b = appendInteger(b, 2)
	for _, s := range []string{"mode", "standalone", "role", "master"} {
		b = appendBulk(b, []byte(s))
	}
	return b
}

func selectDB(_ context.Context, _ *Server, c [][]byte, b []byte) []byte {
	if string(c[1]) != "0" {
		return appendError(b, "ERR DB index is out of range: there is database 0")
	}
	return appendSimple(b, "OK")
}

// command answers that nothing is known about commands, with which clients go on.
func command(_ context.Context, _ *Server, _ [][]byte, b []byte) []byte { return appendArray(b, 0) }

// config answers CONFIG GET for the two settings that redis-benchmark asks for: nothing is written to a
// disk.
func config(_ context.Context, _ *Server, c [][]byte, b []byte) []byte {
	if !strings.EqualFold(string(c[1]), "GET") {
		return appendError(b, fmt.Sprintf("ERR unknown subcommand '%.64s'", c[1]))
	}
	settings := map[string]string{"save": "", "appendonly": "no"}
	var found []string
	for _, name := range c[2:] {
		if v, ok := settings[strings.ToLower(string(name))]; ok {
			found = append(found, strings.ToLower(string(name)), v)
		}
	}
	b = appendArray(b, len(found))
	for _, s := range found {
		b = appendBulk(b, []byte(s))
	}
	return b
}

func info(ctx context.Context, s *Server, _ [][]byte, b []byte) []byte {
	n, err := s.size(ctx)
	if err != nil {
		return appendFailure(b, err)
	}
	t := s.Tables[0]
	return appendBulk(b, fmt.Appendf(nil, "# Server\r\nserver_name:exanet-dht\r\nredis_mode:standalone\r\n"+
		"table:%s\r\nnodes:%s\r\nthreads:%d\r\n# Clients\r\nconnected_clients:%d\r\n# Stats\r\ntotal_commands_processed:%d\r\n"+
		"# Keyspace\r\ndb0:keys=%d,expires=0\r\n",
		t.Name(), strings.Trim(fmt.Sprint(t.Nodes()), "[]"), len(s.Tables), s.clients.Load(), s.served.Load(), n))
}

// size returns the number of keys. Each handle counts what it changed itself.
func (s *Server) size(ctx context.Context) (n uint64, err error) {
	for _, t := range s.Tables {
		if n, err = t.Len(ctx); err != nil {
			return 0, err
		}
	}
	return n, nil
}

func size(ctx context.Context, s *Server, _ [][]byte, b []byte) []byte {
	n, err := s.size(ctx)
	if err != nil {
		return appendFailure(b, err)
	}
	return appendInteger(b, int64(n))
}

func get(ctx context.Context, s *Server, c [][]byte, b []byte) []byte {
	v, ok, err := s.table().GetBytes(ctx, c[1])
	switch {
	case err != nil:
		return appendFailure(b, err)
	case !ok:
		return appendNull(b)
	}
	return appendBulk(b, v)
}

var errCondition = errors.New("the condition does not hold")

func set(ctx context.Context, s *Server, c [][]byte, b []byte) []byte {
	condition := ""
	if len(c) > 3 {
		condition = strings.ToUpper(string(c[3]))
		if len(c) > 4 || condition != "NX" && condition != "XX" {
			return appendError(b, fmt.Sprintf("ERR syntax error: SET has one of the options NX and XX here, and not '%.64s'", bytes.Join(c[3:], []byte(" "))))
		}
	}
	err := s.table().UpdateBytes(ctx, c[1], func(_ []byte, has bool) ([]byte, error) {
		if condition == "NX" && has || condition == "XX" && !has {
			return nil, errCondition
		}
		return c[2], nil
	})
	switch {
	case errors.Is(err, errCondition):
		return appendNull(b)
	case err != nil:
		return appendFailure(b, err)
	}
	return appendSimple(b, "OK")
}

var (
	errInteger  = errors.New("value is not an integer or out of range")
	errOverflow = errors.New("increment or decrement would overflow")
)

// integer returns the number that a text is, and whether it is one in the only form that Redis takes.
func integer(text []byte) (int64, bool) {
	n, err := strconv.ParseInt(string(text), 10, 64)
	return n, err == nil && strconv.FormatInt(n, 10) == string(text)
}

func increment(ctx context.Context, s *Server, c [][]byte, b []byte) []byte {
	by, sign := int64(1), int64(1)
	if c[0][0]|0x20 == 'd' {
		sign = -1
	}
	if len(c) == 3 {
		var ok bool
		if by, ok = integer(c[2]); !ok || sign < 0 && by == math.MinInt64 {
			return appendError(b, "ERR "+errInteger.Error())
		}
	}
	by *= sign
	var sum int64
	err := s.table().UpdateBytes(ctx, c[1], func(old []byte, has bool) ([]byte, error) {
		var n int64
		if has {
			var ok bool
			if n, ok = integer(old); !ok {
				return nil, errInteger
			}
		}
		if sum = n + by; (sum > n) != (by > 0) && by != 0 {
			return nil, errOverflow
		}
		return strconv.AppendInt(nil, sum, 10), nil
	})
	switch {
	case errors.Is(err, errInteger):
		return appendError(b, "ERR "+errInteger.Error())
	case errors.Is(err, errOverflow):
		return appendError(b, "ERR "+errOverflow.Error())
	case err != nil:
		return appendFailure(b, err)
	}
	return appendInteger(b, sum)
}

// each calls f for the keys of a command, as many at once as one client may have.
func each(c [][]byte, f func(i int, key []byte) error) error {
	keys := c[1:]
	if len(keys) == 1 {
		return f(0, keys[0])
	}
	n := min(len(keys), batch)
	errs := make([]error, n)
	var all sync.WaitGroup
	for w := range n {
		all.Go(func() {
			for i := w; i < len(keys) && errs[w] == nil; i += n {
				errs[w] = f(i, keys[i])
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func getAll(ctx context.Context, s *Server, c [][]byte, b []byte) []byte {
	values := make([][]byte, len(c)-1)
	has := make([]bool, len(values))
	if err := each(c, func(i int, key []byte) (err error) {
		values[i], has[i], err = s.table().GetBytes(ctx, key)
		return err
	}); err != nil {
		return appendFailure(b, err)
	}
	b = appendArray(b, len(values))
	for i, v := range values {
		if has[i] {
			b = appendBulk(b, v)
		} else {
			b = appendNull(b)
		}
	}
	return b
}

// remove and exists count the keys that they found. A key that is named twice is deleted once, and
// exists twice, as in Redis.
func remove(ctx context.Context, s *Server, c [][]byte, b []byte) []byte {
	return count(c, b, func(key []byte) (bool, error) { return s.table().DeleteBytes(ctx, key) })
}

func exists(ctx context.Context, s *Server, c [][]byte, b []byte) []byte {
	return count(c, b, func(key []byte) (bool, error) {
		_, ok, err := s.table().GetBytes(ctx, key)
		return ok, err
	})
}

func count(c [][]byte, b []byte, f func(key []byte) (bool, error)) []byte {
	found := make([]bool, len(c)-1)
	if err := each(c, func(i int, key []byte) (err error) {
		found[i], err = f(key)
		return err
	}); err != nil {
		return appendFailure(b, err)
	}
	n := int64(0)
	for _, f := range found {
		if f {
			n++
		}
	}
	return appendInteger(b, n)
}

// appendFailure appends an error of the table, with the word that Redis has for its like.
func appendFailure(b []byte, err error) []byte {
	word := "ERR "
	switch {
	case errors.Is(err, dht.ErrKind):
		word = "WRONGTYPE "
	case errors.Is(err, gsas.ErrRoom):
		word = "OOM "
	case errors.Is(err, dht.ErrBusy), errors.Is(err, gsas.ErrBusy):
		word = "TRYAGAIN "
	}
	return appendError(b, word+strings.ReplaceAll(err.Error(), "\n", "; "))
}
