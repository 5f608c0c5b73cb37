package bench

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/dht"
	"github.com/exanet/pfd/emu/serve"
	"github.com/exanet/pfd/gsas"
	"github.com/exanet/pfd/internal/procstatus"
	"github.com/exanet/pfd/rdma"
)

// tree is a protection tree with threads on the two nodes of a pfd.
type tree struct {
	threads []*gsas.Thread // alternately of nodes 0 and 1
	end     []io.Closer
}

func newTree(ctx context.Context, d *pfd, n int) (t *tree, err error) {
	t = new(tree)
	var ends [2]*rdma.Endpoint
	for node := range ends {
		if ends[node], err = rdma.Attach(ctx, rdma.Options{Socket: d.process.Socket(), Node: device.NodeID(node), Threads: true}); err != nil {
			return t, err
		}
		t.end = append(t.end, ends[node])
	}
	for i := range n {
		var th *gsas.Thread
		if i == 0 {
			th, err = gsas.NewThread(ends[0])
		} else {
			th, err = gsas.Join(ends[i%2], t.threads[0].Token())
		}
		if err != nil {
			return t, err
		}
		t.threads = append(t.threads, th)
	}
	return t, nil
}

func (t *tree) close() (err error) {
	for _, th := range t.threads {
		err = errors.Join(err, th.Close())
	}
	for _, e := range t.end {
		err = errors.Join(err, e.Close())
	}
	return err
}

// operationRow is the number of operations in a row, each of which is a sample.
const operationRow = 64

// gsas measures operations of one thread on words of its own node and of another one, in pfd and in a process of
// their own, beside Redis's INCR, MPI_Fetch_and_op and the processor's own operations on mapped memory.
func (r *run) gsas() error {
	return r.served(func(dir string) error {
		device := fmt.Sprintf("vfio-user:%s,%s", serve.SocketPath(dir, 0), serve.SocketPath(dir, 1))
		return r.each(2, [][]string{nil, {"--device", device}}, r.words)
	})
}

func (r *run) words(pfds []*pfd) (err error) {
	t := r.table("gsas", "An operation on a word of the global address space", "us", "operation", "own node")
	t.note("Each is a sample. Mapped: the processor's operation on the tree's memory of the own node. Redis: INCR by one client over a unix socket. " +
		"MPI: MPI_Fetch_and_op and MPI_Win_flush between two ranks of Open MPI, whose window is reached by messages (osc pt2pt) or mapped by both ranks (osc sm).")
	const add = "fetch and add"
	var turns []*turn
	single := func(row, column string, f func() error) {
		c := t.cell(row, column)
		turns = append(turns, &turn{count: r.count(8), do: func(add func(*Cell, ...float64)) error {
			return laps(add, c, operationRow, 0, func(int) (time.Duration, error) {
				start := time.Now()
				err := f()
				return time.Since(start), err
			})
		}})
	}
	var first *tree
	for i, where := range []string{"", ", vfio-user"} {
		tr, failed := newTree(r.ctx, pfds[i], 8)
		defer func() { err = errors.Join(err, tr.close()) }()
		if failed != nil {
			return failed
		}
		if i == 0 {
			first = tr
		}
		th := tr.threads[0]
		for node, column := range []string{"own node" + where, "other node" + where} {
			at, err := th.Alloc(r.ctx, device.NodeID(node), 1, 0)
			if err != nil {
				return err
			}
			if err := th.Store64(r.ctx, at, 1); err != nil {
				return err
			}
			single(add, column, func() error { _, err := th.FetchAdd(r.ctx, at, 1); return err })
			single("read 64 bits", column, func() error { _, err := th.Load64(r.ctx, at); return err })
			single("read 256 bits", column, func() error { _, err := th.Load256(r.ctx, at); return err })
			single("write 256 bits", column, func() error { return th.Store256(r.ctx, at, [4]uint64{1}) })
			single("compare and swap 128 bits", column, func() error {
				_, err := th.CompareSwap128(r.ctx, at, [2]uint64{}, [2]uint64{})
				return err
			})
			turns = append(turns, r.freshPages(t, th, device.NodeID(node), column))
			if i > 0 || node > 0 {
				continue
			}
			m, err := th.Map()
			if err != nil {
				return err
			}
			words, err := m.Words(at, 1)
			if err != nil {
				return err
			}
			// A single one takes less than reading the clock.
			c := t.cell(add, "mapped")
			turns = append(turns, &turn{count: r.count(8), do: func(add func(*Cell, ...float64)) error {
				start := time.Now()
				for range 100 * operationRow {
					atomic.AddUint64(&words[0], 1)
				}
				add(c, float64(time.Since(start).Nanoseconds())/1e3/(100*operationRow))
				runtime.KeepAlive(m)
				return nil
			}})
		}
	}
	if r.installed(t, add, "Redis", "redis-server", "apt-get install redis-server") {
		c, stop, err := r.redis(1)
		if err != nil {
			return err
		}
		defer stop()
		single(add, "Redis", func() error { return c[0].ask("*2\r\n$4\r\nINCR\r\n$1\r\nx\r\n", ':') })
	}
	jobs, done, failed := r.mpi(t, add)
	defer func() { err = errors.Join(err, done()) }()
	if failed != nil {
		return failed
	}
	return errors.Join(r.takeTurns(append(turns, jobs...)...), r.oneVariable(first))
}

// freshPages returns the case of words in pages that were never used.
func (r *run) freshPages(t *Table, th *gsas.Thread, node device.NodeID, column string) *turn {
	c := t.cell("fetch and add, page absent", column)
	return &turn{count: r.count(8), do: func(add func(*Cell, ...float64)) error {
		at, err := th.Alloc(r.ctx, node, operationRow, 0)
		if err != nil {
			return err
		}
		err = laps(add, c, operationRow, 0, func(i int) (time.Duration, error) {
			start := time.Now()
			_, err := th.FetchAdd(r.ctx, at+gsas.Address(i)*gsas.PageSize, 1)
			return time.Since(start), err
		})
		return errors.Join(err, th.Free(r.ctx, at))
	}}
}

// oneVariable measures how often threads add to one word.
func (r *run) oneVariable(tr *tree) error {
	t := r.table("gsas-rates", "Threads that add to one word", "1,000/s", "threads", "1, own node")
	t.Means = true
	at, err := tr.threads[0].Alloc(r.ctx, 0, 1, 0)
	if err != nil {
		return err
	}
	var turns []*turn
	for _, k := range []struct {
		row     string
		threads []*gsas.Thread
	}{
		{"1, own node", tr.threads[:1]}, {"1, other node", tr.threads[1:2]},
		{"4, own node", []*gsas.Thread{tr.threads[0], tr.threads[2], tr.threads[4], tr.threads[6]}}, {"4, of two nodes", tr.threads[:4]},
	} {
		c := t.cell(k.row, "additions")
		turns = append(turns, &turn{count: max(r.Count/200, 1), do: func(add func(*Cell, ...float64)) error {
			n, took, err := together(r.ctx, len(k.threads), r.Window, func(i int) error {
				_, err := k.threads[i].FetchAdd(r.ctx, at, 1)
				return err
			})
			add(c, float64(n)/took.Seconds()/1e3)
			return err
		}})
	}
	return r.takeTurns(turns...)
}

// errEnough ends a goroutine of together before its time.
var errEnough = errors.New("enough")

// together lets n goroutines repeat f for a time, and returns how often they did.
func together(ctx context.Context, n int, window time.Duration, f func(i int) error) (count int64, took time.Duration, err error) {
	errs := make([]error, n)
	var all atomic.Int64
	var running sync.WaitGroup
	start := time.Now()
	for i := range n {
		running.Go(func() {
			done := int64(0)
			for ; time.Since(start) < window && ctx.Err() == nil && errs[i] == nil; done++ {
				errs[i] = f(i)
			}
			if errors.Is(errs[i], errEnough) {
				errs[i], done = nil, done-1
			}
			all.Add(done)
		})
	}
	running.Wait()
	return all.Load(), time.Since(start), errors.Join(append(errs, ctx.Err())...)
}

// Parameters of the dht suite: D3.7 §2.5.3 has 10^5 operations and three threads a node. The size of a
// value is that of the table's.
const dhtClients = 3

func (r *run) dhtKeys() int { return 100 * max(r.Count, 1) } // 10^5 with the usual count

// A store is what the dht suite measures: a client i gets or puts a key.
type store struct {
	name string
	get  func(i int, key uint64) error
	put  func(i int, key uint64) error
	used func() (float64, error) // bytes of memory
}

// dht measures the hash table beside Redis and memcached, with the same keys and clients.
func (r *run) dht() error {
	t := r.table("dht", fmt.Sprintf("Gets and puts of %d keys by %d clients", r.dhtKeys(), dhtClients), "1,000/s", "operations", "ours, two nodes")
	t.Means = true
	t.note("64-bit keys and values of 128 bits, no pipelining; Redis and memcached by unix sockets, with one thread. Clients and servers share the processors. Zipf has the exponent 0.99.")
	return r.with(2, func(d *pfd) (err error) {
		tr, err := newTree(r.ctx, d, dhtClients)
		defer func() { err = errors.Join(err, tr.close()) }()
		if err != nil {
			return err
		}
		var stores []store
		for _, dense := range []bool{false, true} {
			s, err := ourStore(r.ctx, d.pid, tr, dht.Options{Nodes: []device.NodeID{0, 1}, Keys: uint64(r.dhtKeys()), Dense: dense})
			if err != nil {
				return err
			}
			stores = append(stores, s)
		}
		if r.installed(t, "get, uniform", "Redis", "redis-server", "apt-get install redis-server") {
			c, stop, err := r.redis(dhtClients)
			if err != nil {
				return err
			}
			defer stop()
			stores = append(stores, c.store())
		}
		if r.installed(t, "get, uniform", "memcached", "memcached", "apt-get install memcached") {
			c, stop, err := r.memcached(dhtClients)
			if err != nil {
				return err
			}
			defer stop()
			stores = append(stores, c.store())
		}
		return r.stores(t, stores)
	})
}

func (r *run) stores(t *Table, stores []store) error {
	keys := uint64(r.dhtKeys())
	bytes := r.table("dht-memory", "Memory of a table", "bytes a key", "store", "")
	bytes.note("Ours: pfd's resident shared memory. Redis: used_memory. memcached: bytes of its items.")
	for _, s := range stores {
		before, err := s.used()
		if err != nil {
			return err
		}
		next := atomic.Uint64{}
		start := time.Now()
		_, _, err = together(r.ctx, dhtClients, time.Hour, func(i int) error {
			n := next.Add(1) - 1
			if n >= keys {
				return errEnough
			}
			return s.put(i, dhtKey(n))
		})
		if err != nil {
			return err
		}
		t.Add("put into an empty table", s.name, float64(keys)/time.Since(start).Seconds()/1e3)
		after, err := s.used()
		if err != nil {
			return err
		}
		bytes.Add(s.name, "memory", (after-before)/float64(keys))
	}
	zipf := newZipf(int(keys), 0.99)
	var turns []*turn
	for _, s := range stores {
		for _, k := range []struct {
			row  string
			puts float64
			draw func(*rand.Rand) uint64
		}{
			{"get, uniform", 0, func(r *rand.Rand) uint64 { return r.Uint64N(keys) }},
			{"get, Zipf", 0, zipf.draw},
			{"80 % put, uniform", 0.8, func(r *rand.Rand) uint64 { return r.Uint64N(keys) }},
			{"50 % put, uniform", 0.5, func(r *rand.Rand) uint64 { return r.Uint64N(keys) }},
		} {
			c := t.cell(k.row, s.name)
			var random [dhtClients]*rand.Rand
			for i := range random {
				random[i] = rand.New(rand.NewPCG(uint64(i), 1)) // the same keys for all stores
			}
			turns = append(turns, &turn{count: max(r.Count/250, 1), do: func(add func(*Cell, ...float64)) error {
				n, took, err := together(r.ctx, dhtClients, r.Window, func(i int) error {
					key := dhtKey(k.draw(random[i]))
					if k.puts > 0 && random[i].Float64() < k.puts {
						return s.put(i, key)
					}
					return s.get(i, key)
				})
				add(c, float64(n)/took.Seconds()/1e3)
				return err
			}})
		}
	}
	return r.takeTurns(turns...)
}

func dhtKey(n uint64) uint64 { return (n + 1) * 0x9e3779b97f4a7c15 }

func dhtValue(key uint64) (v [16]byte) {
	binary.LittleEndian.PutUint64(v[0:], key)
	binary.LittleEndian.PutUint64(v[8:], ^key)
	return v
}

// errWrong: a store has another value than the one that was put.
var errWrong = errors.New("the value of a key is wrong")

func ourStore(ctx context.Context, pid int, tr *tree, o dht.Options) (store, error) {
	s := store{name: "ours, two nodes"}
	if o.Dense {
		s.name = "ours, dense"
	}
	var tables [dhtClients]*dht.Table
	var err error
	for i, th := range tr.threads {
		if i == 0 {
			tables[i], err = dht.Create(ctx, th, s.name, o)
		} else {
			tables[i], err = dht.Open(ctx, th, s.name)
		}
		if err != nil {
			return s, err
		}
	}
	s.get = func(i int, key uint64) error {
		v, ok, err := tables[i].Get(ctx, key)
		if err == nil && (!ok || v != dhtValue(key)) {
			err = fmt.Errorf("%w: %#x", errWrong, key)
		}
		return err
	}
	s.put = func(i int, key uint64) error { return tables[i].Put(ctx, key, dhtValue(key)) }
	s.used = func() (float64, error) { // pfd maps the table's pages, each of them twice
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return 0, err
		}
		n, err := procstatus.Bytes(b, "Pss_Shmem")
		return float64(n), err
	}
	return s, nil
}

// connection is that of a client of a server.
type connection struct {
	net.Conn
	r *bufio.Reader
}

// ask sends a request, and reads a line of answer that begins with a byte.
func (c *connection) ask(request string, first byte) error {
	_, err := c.line(request, first)
	return err
}

func (c *connection) line(request string, first byte) (string, error) {
	if _, err := io.WriteString(c, request); err != nil {
		return "", err
	}
	line, err := c.r.ReadString('\n')
	if err == nil && line[0] != first {
		err = fmt.Errorf("%w: %q", ErrPeer, line)
	}
	return line, err
}

// value reads a value of 16 bytes, and checks it.
func (c *connection) value(key uint64, rest int) error {
	b := make([]byte, 16+rest)
	if _, err := io.ReadFull(c.r, b); err != nil {
		return err
	}
	if [16]byte(b) != dhtValue(key) {
		return fmt.Errorf("%w: %#x", errWrong, key)
	}
	return nil
}

// serve starts a server at a unix socket and connects clients.
func (r *run) serve(clients int, program string, args func(socket, dir string) []string) (c []*connection, stop func(), err error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(r.ctx)
	socket := filepath.Join(dir, "s")
	server, err := helper(ctx, program, nil, args(socket, dir)...)
	if err != nil {
		cancel()
		return nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	ended := make(chan struct{})
	go func() {
		_ = server.Wait() // it ends by SIGTERM
		close(ended)
	}()
	stop = func() {
		for _, c := range c {
			_ = c.Close()
		}
		cancel()
		<-ended
		_ = os.RemoveAll(dir)
	}
	for len(c) < clients {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			c = append(c, &connection{conn, bufio.NewReader(conn)})
			continue
		}
		select {
		case <-ended:
			stop()
			return nil, nil, fmt.Errorf("%w: %s ended at its start", ErrPeer, program)
		case <-r.ctx.Done():
			stop()
			return nil, nil, r.ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return c, stop, nil
}

// redisClients and memcachedClients are the connections of clients of one server.
type (
	redisClients     []*connection
	memcachedClients []*connection
)

func (r *run) redis(clients int) (redisClients, func(), error) {
	c, stop, err := r.serve(clients, "redis-server", func(socket, dir string) []string {
		return []string{"--port", "0", "--unixsocket", socket, "--dir", dir, "--save", "", "--appendonly", "no", "--loglevel", "warning", "--logfile", filepath.Join(dir, "log")}
	})
	return c, stop, err
}

func (c redisClients) store() store {
	return store{
		name: "Redis",
		get: func(i int, key uint64) error {
			if err := c[i].ask(fmt.Sprintf("*2\r\n$3\r\nGET\r\n$16\r\n%016x\r\n", key), '$'); err != nil {
				return err
			}
			return c[i].value(key, len("\r\n"))
		},
		put: func(i int, key uint64) error {
			v := dhtValue(key)
			return c[i].ask(fmt.Sprintf("*3\r\n$3\r\nSET\r\n$16\r\n%016x\r\n$16\r\n%s\r\n", key, v[:]), '+')
		},
		used: func() (float64, error) {
			line, err := c[0].line("*2\r\n$4\r\nINFO\r\n$6\r\nmemory\r\n", '$')
			if err != nil {
				return 0, err
			}
			n, _ := strconv.Atoi(strings.TrimSpace(line[1:]))
			text := make([]byte, n+len("\r\n"))
			if _, err := io.ReadFull(c[0].r, text); err != nil {
				return 0, err
			}
			return figure("redis-server", string(text), submatch(usedMemory, string(text)))
		},
	}
}

// usedMemory is a line of INFO memory.
var usedMemory = regexp.MustCompile(`(?m)^used_memory:(\d+)\r$`)

func (r *run) memcached(clients int) (memcachedClients, func(), error) {
	c, stop, err := r.serve(clients, "memcached", func(socket, _ string) []string {
		return []string{"-s", socket, "-t", "1", "-m", "1024", "-u", "root"}
	})
	return c, stop, err
}

func (c memcachedClients) store() store {
	return store{
		name: "memcached",
		get: func(i int, key uint64) error {
			if err := c[i].ask(fmt.Sprintf("get %016x\r\n", key), 'V'); err != nil {
				return err
			}
			return c[i].value(key, len("\r\nEND\r\n"))
		},
		put: func(i int, key uint64) error {
			v := dhtValue(key)
			return c[i].ask(fmt.Sprintf("set %016x 0 0 16\r\n%s\r\n", key, v[:]), 'S')
		},
		used: func() (n float64, err error) {
			line, err := c[0].line("stats\r\n", 'S')
			for err == nil && !strings.HasPrefix(line, "END") {
				if f := strings.Fields(line); len(f) == 3 && f[1] == "bytes" {
					if n, err = strconv.ParseFloat(f[2], 64); err != nil {
						return 0, fmt.Errorf("%w: memcached prints %q", ErrPeer, line)
					}
				}
				line, err = c[0].r.ReadString('\n')
			}
			return n, err
		},
	}
}

// zipf draws numbers below n with the probability of k proportional to 1 / (k + 1)^exponent, by the method
// of Gray et al., Quickly Generating Billion-Record Synthetic Databases, SIGMOD 1994, which YCSB uses. That of package
// math/rand needs an exponent above 1.
type zipf struct{ n, exponent, zeta, alpha, eta, half float64 }

func newZipf(n int, exponent float64) zipf {
	z := zipf{n: float64(n), exponent: exponent, alpha: 1 / (1 - exponent), half: math.Pow(0.5, exponent)}
	for k := 1; k <= n; k++ {
		z.zeta += math.Pow(1/float64(k), exponent)
	}
	z.eta = (1 - math.Pow(2/z.n, 1-exponent)) / (1 - (1+z.half)/z.zeta)
	return z
}

func (z zipf) draw(r *rand.Rand) uint64 {
	u := r.Float64()
	switch uz := u * z.zeta; {
	case uz < 1:
		return 0
	case uz < 1+z.half:
		return 1
	}
	return uint64(min(z.n*math.Pow(z.eta*u-z.eta+1, z.alpha), z.n-1))
}
