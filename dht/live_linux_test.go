package dht_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/dht"
	"github.com/exanet/pfd/gsas"
	"github.com/exanet/pfd/rdma"
)

func TestMain(m *testing.M) {
	if os.Getenv("DHT_WRITER") != "" {
		if err := writer(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// runPFD runs a pfd with two nodes in this process, and returns its socket.
func runPFD(t testing.TB, loss float64) string {
	t.Helper()
	cfg := daemon.Default()
	cfg.Socket = filepath.Join(t.TempDir(), "pfd.sock")
	cfg.Link.Loss, cfg.Link.Seed = loss, 7
	m, err := daemon.Emulated(cfg)
	ok(t, err)
	d, err := daemon.New(cfg, m)
	ok(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		ok(t, <-done)
	})
	return cfg.Socket
}

// threads returns threads of one tree, alternately on nodes 0 and 1.
func threads(t testing.TB, socket string, n int) (list []*gsas.Thread) {
	t.Helper()
	var ends [2]*rdma.Endpoint
	for i := range ends {
		var err error
		ends[i], err = rdma.Attach(t.Context(), rdma.Options{Socket: socket, Node: device.NodeID(i), Threads: true})
		ok(t, err)
		t.Cleanup(func() { ok(t, ends[i].Close()) })
	}
	for i := range n {
		var th *gsas.Thread
		var err error
		if i == 0 {
			th, err = gsas.NewThread(ends[0])
		} else {
			th, err = gsas.Join(ends[i%2], list[0].Token())
		}
		ok(t, err)
		list = append(list, th)
	}
	return list
}

// TestHistories: histories of four threads on two nodes of a pfd, on keys that meet in elements and
// containers, are linearizable; so they are if a link loses messages, which are then asked for again.
func TestHistories(t *testing.T) {
	for _, k := range []struct {
		name      string
		histories int
		loss      float64
	}{{"live", 1000, 0}, {"messages are lost", 10, 0.01}} {
		t.Run(k.name, func(t *testing.T) {
			all := threads(t, runPFD(t, k.loss), 4)
			_, err := dht.Create(t.Context(), all[0], "t", dht.Options{Nodes: []device.NodeID{0, 1}, Keys: 1})
			ok(t, err)
			var tables [4]*dht.Table
			for i, th := range all {
				tables[i], err = dht.Open(t.Context(), th, "t")
				ok(t, err)
			}
			for n := range k.histories {
				history(t, uint64(n), tables)
			}
		})
	}
}

func history(t *testing.T, seed uint64, tables [4]*dht.Table) {
	keys := dht.Colliding(seed, 4, int(seed%3))
	for _, k := range keys {
		_, err := tables[0].Delete(t.Context(), k)
		ok(t, err)
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	var done []porcupine.Operation
	start := time.Now()
	for id, table := range tables {
		all.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(10+id)))
			for i := range 12 {
				in := dht.Input{Key: keys[r.IntN(len(keys))], Verb: []string{"get", "get", "put", "put", "delete"}[r.IntN(5)], Value: uint64(id<<16 | i)}
				op := porcupine.Operation{ClientId: id, Input: in, Call: time.Since(start).Nanoseconds()}
				out, err := in.Do(t.Context(), table)
				op.Return, op.Output = time.Since(start).Nanoseconds(), out
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				done = append(done, op)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if r := porcupine.CheckOperationsTimeout(dht.KeyModel, done, time.Minute); r != porcupine.Ok {
		t.Fatalf("history %d: %v", seed, r)
	}
}

// writer puts growing values, and prints the number of each that was put, until it is killed.
func writer() error {
	ctx := context.Background()
	ep, err := rdma.Attach(ctx, rdma.Options{Socket: os.Getenv("DHT_WRITER"), Node: 1, Threads: true})
	if err != nil {
		return err
	}
	token, err := gsas.ParseToken(os.Getenv("DHT_TOKEN"))
	if err != nil {
		return err
	}
	th, err := gsas.Join(ep, token)
	if err != nil {
		return err
	}
	t, err := dht.Open(ctx, th, "t")
	if err != nil {
		return err
	}
	round, err := strconv.Atoi(os.Getenv("DHT_ROUND"))
	if err != nil {
		return err
	}
	// Each round has new keys, so that elements become indirect, and keys of its own for bytes.
	keys := dht.Colliding(uint64(round), 30, 1)
	for n := 1; ; n++ {
		var v [16]byte
		binary.LittleEndian.PutUint64(v[:], uint64(n))
		if err := t.Put(ctx, keys[n%len(keys)], v); err != nil {
			return err
		}
		if err := t.PutBytes(ctx, fmt.Appendf(nil, "key %d %d", round, n%7), fmt.Append(nil, n)); err != nil {
			return err
		}
		fmt.Println(n)
	}
}

// TestKilled: a process that is killed as it puts loses no value that was put, and the table goes on.
func TestKilled(t *testing.T) {
	socket := runPFD(t, 0)
	th := threads(t, socket, 1)[0]
	table, err := dht.Create(t.Context(), th, "t", dht.Options{Nodes: []device.NodeID{0, 1}, Keys: 1})
	ok(t, err)
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 15 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), "DHT_WRITER="+socket, "DHT_TOKEN="+th.Token().String(), "DHT_ROUND="+strconv.Itoa(round))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		ok(t, err)
		ok(t, cmd.Start())
		lines := bufio.NewScanner(out)
		last, killAt := 0, 1+r.IntN(200)
		for lines.Scan() {
			n, err := strconv.Atoi(lines.Text())
			if err != nil || n != last+1 {
				break // a line that was cut
			}
			if last = n; n == killAt {
				ok(t, cmd.Process.Kill())
			}
		}
		_, _ = io.Copy(io.Discard, out)
		if err := cmd.Wait(); last < killAt {
			t.Fatalf("the writer ended: %v", err)
		}
		keys := dht.Colliding(uint64(round), 30, 1)
		for i, k := range keys {
			v, has, err := table.Get(t.Context(), k)
			ok(t, err)
			n := int(binary.LittleEndian.Uint64(v[:]))
			want := last - (last-i+len(keys))%len(keys) // the last number that was put there and printed
			if want > 0 && !has || has && (n < want || n > want+len(keys) || n%len(keys) != i) {
				t.Errorf("round %d: key %d has %d (%t), and %d was put, %d was the last one of all", round, i, n, has, want, last)
			}
		}
		for i := range min(last, 7) {
			v, has, err := table.GetBytes(t.Context(), fmt.Appendf(nil, "key %d %d", round, (last-i)%7))
			if n, _ := strconv.Atoi(string(v)); err != nil || !has || n < last-i {
				t.Errorf("round %d: bytes: %q %t %v, and %d was put", round, v, has, err, last-i)
			}
		}
	}
	for part := range 2 {
		seen := map[uint64]bool{}
		ok(t, table.Range(t.Context(), part, func(k uint64, _ dht.Entry) bool {
			if seen[k] {
				t.Errorf("key %#x is in two places", k)
			}
			seen[k] = true
			return true
		}))
	}
}

// TestGone: a node whose pfd ended is gone, and its keys are not taken for absent.
func TestGone(t *testing.T) {
	cfg := daemon.Default()
	cfg.Socket = filepath.Join(t.TempDir(), "pfd.sock")
	m, err := daemon.Emulated(cfg)
	ok(t, err)
	d, err := daemon.New(cfg, m)
	ok(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	ep, err := rdma.Attach(t.Context(), rdma.Options{Socket: cfg.Socket, Threads: true})
	ok(t, err)
	th, err := gsas.NewThread(ep)
	ok(t, err)
	table, err := dht.Create(t.Context(), th, "t", dht.Options{Nodes: []device.NodeID{0, 1}, Keys: 1})
	ok(t, err)
	ok(t, table.Put(t.Context(), 1, [16]byte{1}))
	cancel()
	ok(t, <-done)
	if _, _, err := table.Get(t.Context(), 1); !errors.Is(err, gsas.ErrGone) {
		t.Errorf("a get after the end of pfd: %v", err)
	}
	_ = ep.Close()
}
