// Scatter sums the columns of a matrix with several processes. The matrix is stored row by row in
// the first process, which writes a block of columns into each of the others by a gather list, and
// collects its writes from a completion queue. The others write their sums into its memory.
//
//	scatter [-socket PATH] [-workers N] [-rows N] [-columns N]
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"strings"

	"github.com/exanet/pfd/rdma"
)

var (
	socket  = flag.String("socket", "", "pfd's control socket; empty: the default one")
	workers = flag.Int("workers", 3, "processes that sum")
	rows    = flag.Int("rows", 100, "rows of the matrix")
	columns = flag.Int("columns", 300, "columns of the matrix: a multiple of the workers")
	sums    = flag.String("sums", "", "run as a worker, and write the sums to this Remote")
)

// Memory that others write to begins with two completion words of 8 bytes, followed by numbers of
// 8 bytes.
const (
	words = 16
	num   = 8
	came  = 1
)

func main() {
	log.SetFlags(0)
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	run := scatter
	if *sums != "" {
		run = work
	}
	if err := run(ctx); err != nil {
		log.Fatalf("scatter: %v", err)
	}
}

// inbox returns memory for n numbers that one other process writes, and its name.
func inbox(ep *rdma.Endpoint, n int) (numbers []byte, last *uint64, name rdma.Remote, err error) {
	buf, err := ep.Alloc(words + n*num)
	if err != nil {
		return nil, nil, rdma.Remote{}, err
	}
	if last, err = rdma.Word(buf.Bytes(), 8); err != nil {
		return nil, nil, rdma.Remote{}, err
	}
	name, err = ep.Export(buf.Bytes())
	return buf.Bytes()[words:], last, name, err
}

func scatter(ctx context.Context) (err error) {
	if *workers < 1 || *rows < 1 || *columns < 1 || *columns%*workers != 0 {
		return errors.New("-columns must be a multiple of -workers, and none of them less than 1")
	}
	ep, err := rdma.Attach(ctx, rdma.Options{Socket: *socket, Node: 0, AcceptGroup: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ep.Close()) }()
	matrix, err := ep.Alloc(*rows * *columns * num)
	if err != nil {
		return err
	}
	for i := range *rows * *columns {
		binary.LittleEndian.PutUint64(matrix.Bytes()[i*num:], uint64(i))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the workers if this process fails
	block := *columns / *workers
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	queue := ep.NewQueue()
	var results [][]byte
	var lasts []*uint64
	var others []*exec.Cmd
	for w := range *workers {
		result, last, name, err := inbox(ep, block)
		if err != nil {
			return err
		}
		other := exec.CommandContext(ctx, exe, "-socket", *socket, "-rows", fmt.Sprint(*rows), "-columns", fmt.Sprint(block), "-sums", name.String())
		other.Stderr = os.Stderr
		out, err := other.StdoutPipe()
		if err != nil {
			return err
		}
		if err := other.Start(); err != nil {
			return err
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			return fmt.Errorf("no answer from worker %d: %w", w, err)
		}
		remote, err := rdma.ParseRemote(strings.TrimSpace(line))
		if err != nil {
			return err
		}
		var list [][]byte // a part of each row
		for row := range *rows {
			from := (row**columns + w*block) * num
			list = append(list, matrix.Bytes()[from:from+block*num])
		}
		if _, err := ep.Write(ctx, rdma.WriteRequest{
			Gather: list, Dst: remote, Offset: words, Queue: queue, ID: uint64(w),
			Notify: &rdma.Notification{Last: came},
		}); err != nil {
			return err
		}
		results, lasts, others = append(results, result), append(lasts, last), append(others, other)
	}
	for t, err := range queue.Finished(ctx) {
		switch {
		case t == nil:
			return err
		case err != nil:
			return fmt.Errorf("worker %d: %w", t.ID(), err)
		}
	}
	wrong := 0
	for w, other := range others {
		if err := ep.WaitNotification(ctx, lasts[w], came); err != nil {
			return err
		}
		if err := other.Wait(); err != nil {
			return fmt.Errorf("worker %d: %w", w, err)
		}
		for i := range block {
			// Of column c: the sum of row*columns + c over the rows.
			c := w*block + i
			want := uint64(*columns**rows*(*rows-1)/2 + *rows*c)
			if binary.LittleEndian.Uint64(results[w][i*num:]) != want {
				wrong++
			}
		}
	}
	fmt.Printf("%d columns of %d rows by %d workers, %d sums wrong\n", *columns, *rows, *workers, wrong)
	if wrong > 0 {
		return errors.New("wrong sums")
	}
	return nil
}

// work sums the columns of one block.
func work(ctx context.Context) (err error) {
	remote, err := rdma.ParseRemote(*sums)
	if err != nil {
		return err
	}
	ep, err := rdma.Attach(ctx, rdma.Options{Socket: *socket, Node: 1, AcceptGroup: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ep.Close()) }()
	block, last, name, err := inbox(ep, *rows**columns)
	if err != nil {
		return err
	}
	fmt.Println(name)
	if err := ep.WaitNotification(ctx, last, came); err != nil {
		return err
	}
	total := make([]byte, *columns*num)
	for c := range *columns {
		var sum uint64
		for row := range *rows {
			sum += binary.LittleEndian.Uint64(block[(row**columns+c)*num:])
		}
		binary.LittleEndian.PutUint64(total[c*num:], sum)
	}
	t, err := ep.Write(ctx, rdma.WriteRequest{
		Src: total, Dst: remote, Offset: words,
		Notify: &rdma.Notification{Last: came},
	})
	if err != nil {
		return err
	}
	return t.Wait(ctx)
}
