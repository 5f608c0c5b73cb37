package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// background starts a command line of dir that runs until the test ends, and returns its first line.
func background(t *testing.T, dir, line string) string {
	t.Helper()
	words := strings.Fields(line)
	cmd := exec.Command(filepath.Join(dir, words[0]), words[1:]...)
	var errs bytes.Buffer
	cmd.Dir, cmd.Stderr = dir, &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	first, err := bufio.NewReader(out).ReadString('\n')
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v\n%s", line, err, errs.String())
		}
	})
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, errs.String())
	}
	return first
}

// TestHashTable: the commands of tables, on two nodes of a pfd.
func TestHashTable(t *testing.T) {
	dir := programs(t)
	d := startPFD(t, dir)
	ctl := "bin/exanetctl --socket " + d.Socket() + " dht "
	background(t, dir, ctl+"create words --nodes 0,1 --keys 1000 --tree words.tree")
	if info, err := os.Stat(filepath.Join(dir, "words.tree")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the token's file: %v, %v", info.Mode(), err)
	}
	for i := range 20 {
		if code, _, errs := execute(t, dir, fmt.Sprintf("%sput words key%d value%d --node %d --tree words.tree", ctl, i, i, i%2)); code != 0 {
			t.Fatal(errs)
		}
	}
	for _, c := range []struct {
		line string
		code int
		out  string // or a part of the error
	}{
		{"get words key7 --tree words.tree", 0, "value7\n"},
		{"get words key7 --node 1 --tree words.tree", 0, "value7\n"},
		{"delete words key7 --tree words.tree", 0, ""},
		{"get words key7 --tree words.tree", 1, "does not have the key"},
		{"delete words key7 --tree words.tree", 1, "does not have the key"},
		{"get other key7 --tree words.tree", 1, "no such table"},
		{"get words key7", 2, "--tree FILE"},
		{"get words key7 --tree none", 1, "none"},
		{"get words key7 --tree bin/exanetctl", 2, "hexadecimal"},
		{"get words " + strings.Repeat("k", 251) + " --tree words.tree", 1, "250 is the most"},
		{"put words k " + strings.Repeat("v", 1025) + " --tree words.tree", 1, "1024 is the most"},
		{"create words --tree words.tree --keys 0", 2, "--keys 0"},
		{"create words", 2, "--tree FILE"},
		{"create " + strings.Repeat("n", 25) + " --tree x.tree", 1, "1 to 24 bytes"},
		{"create words --nodes 5 --tree x.tree", 1, "node 5"},
		{"serve words --resp nowhere", 2, "HOST:PORT"},
		{"serve words", 2, "--resp ADDRESS"},
		{"bench --threads 9", 2, "1 to 8"},
	} {
		code, out, errs := execute(t, dir, ctl+c.line)
		if code != c.code || code == 0 && out != c.out || code != 0 && !strings.Contains(errs, c.out) {
			t.Errorf("dht %.80s: code %d, want %d: %s%s", c.line, code, c.code, out, errs)
		}
	}
	code, out, errs := execute(t, dir, ctl+"show words --tree words.tree -o json")
	var parts []dhtPart
	if err := json.Unmarshal([]byte(out), &parts); code != 0 || err != nil || len(parts) != 2 || parts[0].Keys+parts[1].Keys != 19 || parts[0].Deleted+parts[1].Deleted != 1 {
		t.Errorf("dht show: code %d: %s%s", code, out, errs)
	}
	code, out, errs = execute(t, dir, ctl+"bench --nodes 0,1 --keys 2000 --threads 2 --puts 0.3 -D 200ms -o json")
	var rates []dhtRates
	if err := json.Unmarshal([]byte(out), &rates); code != 0 || err != nil || len(rates) != 3 || rates[0].Count != 2000 || rates[1].Count == 0 || rates[2].Count == 0 {
		t.Errorf("dht bench: code %d: %s%s", code, out, errs)
	}
}

// The nodes of a pfd may have other ids than 0 and 1: without --node and --nodes its first one is taken.
func TestHashTableOfOtherNodes(t *testing.T) {
	dir := programs(t)
	d := startNodes(t, dir, 2, "--node-base", "4")
	ctl := "bin/exanetctl --socket " + d.Socket() + " dht "
	background(t, dir, ctl+"create words --keys 1000 --tree words.tree")
	for _, line := range []string{"put words k v --tree words.tree", "get words k --tree words.tree", "get words k --node 5 --tree words.tree"} {
		if code, _, errs := execute(t, dir, ctl+line); code != 0 {
			t.Errorf("dht %s: code %d: %s", line, code, errs)
		}
	}
	if code, out, errs := execute(t, dir, ctl+"show words --tree words.tree -o csv"); code != 0 || !strings.Contains(out, "\n4,1,") {
		t.Errorf("dht show: code %d: %s%s", code, out, errs)
	}
	if code, _, errs := execute(t, dir, ctl+"bench --keys 100 -D 10ms"); code != 0 {
		t.Errorf("dht bench: code %d: %s", code, errs)
	}
	if code, _, errs := execute(t, dir, ctl+"get words k --node 0 --tree words.tree"); code != 1 || !strings.Contains(errs, "no node 0 here") || !strings.Contains(errs, "4") {
		t.Errorf("a node of no pfd: code %d: %s", code, errs)
	}
}

// TestHashTableDocument runs the commands of docs/dht.md.
func TestHashTableDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/dht.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := programs(t)
	d := startPFD(t, dir)
	t.Setenv("RUNTIME_DIRECTORY", filepath.Dir(d.Socket()))
	runs, got := 0, ""
	for _, block := range shellBlock.FindAllStringSubmatch(string(text), -1) {
		for line := range strings.Lines(block[1]) {
			line = strings.TrimSpace(line)
			program := strings.Fields(line)[0]
			if program == "exanetctl" {
				line = "bin/" + line
			} else if path, err := exec.LookPath(program); err != nil {
				t.Logf("%s is not run: package redis-tools is not installed", program)
				continue
			} else if line, err = filepath.Rel(dir, path); err != nil {
				t.Fatal(err)
			} else {
				_, arguments, _ := strings.Cut(block[1][strings.Index(block[1], program):], " ")
				arguments, _, _ = strings.Cut(arguments, "\n")
				line += " " + arguments
			}
			runs++
			if line, ok := strings.CutSuffix(line, " &"); ok {
				background(t, dir, line)
				continue
			}
			code, out, errs := execute(t, dir, line)
			if code != 0 {
				t.Errorf("%s: code %d: %s", line, code, errs)
			}
			got += out
		}
	}
	if want := "green\n"; runs < 5 || !strings.HasPrefix(got, want) || !strings.Contains(got, "KEYS") {
		t.Errorf("%d commands printed %q", runs, got)
	}
}

// shellBlock is a block of commands in a document.
var shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")

// TestRedisClients: go-redis, redis-cli and redis-benchmark use a table unchanged.
func TestRedisClients(t *testing.T) {
	dir := programs(t)
	d := startPFD(t, dir)
	socket := filepath.Join(dir, "resp.sock")
	background(t, dir, "bin/exanetctl --socket "+d.Socket()+" dht serve words --nodes 0,1 --resp "+socket)
	ctx := t.Context()
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: socket})
	defer c.Close()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ok(c.Ping(ctx).Err())
	ok(c.Set(ctx, "colour", "green", 0).Err())
	if v, err := c.Get(ctx, "colour").Result(); v != "green" || err != nil {
		t.Error(v, err)
	}
	if _, err := c.Get(ctx, "nothing").Result(); !errors.Is(err, redis.Nil) {
		t.Error(err)
	}
	if done, err := c.SetNX(ctx, "colour", "red", 0).Result(); done || err != nil {
		t.Error(done, err)
	}
	if err := c.Set(ctx, "big", strings.Repeat("v", 1025), 0).Err(); err == nil || !strings.Contains(err.Error(), "1024 is the most") {
		t.Error(err)
	}
	if err := c.LPush(ctx, "list", "a").Err(); err == nil || !strings.Contains(err.Error(), "unknown command") {
		t.Error(err)
	}
	if err := c.Incr(ctx, "colour").Err(); err == nil || !strings.Contains(err.Error(), "not an integer") {
		t.Error(err)
	}

	// A pipeline of commands on few keys: each answer is that of the commands in their order.
	_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		var sets []*redis.StatusCmd
		var gets []*redis.StringCmd
		for i := range 500 {
			sets = append(sets, p.Set(ctx, "k"+strconv.Itoa(i%7), i, 0))
			gets = append(gets, p.Get(ctx, "k"+strconv.Itoa(i%7)))
		}
		t.Cleanup(func() {
			for i := range gets {
				if n, err := gets[i].Int(); n != i || err != nil || sets[i].Err() != nil {
					t.Errorf("command %d: %d %v", i, n, err)
				}
			}
		})
		return nil
	})
	ok(err)

	// Clients at once count to a sum, and none is lost.
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				if err := c.Incr(ctx, "counter").Err(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if n, err := c.Get(ctx, "counter").Int(); n != 1600 || err != nil {
		t.Error(n, err)
	}
	if v, err := c.MGet(ctx, "k0", "none", "colour").Result(); err != nil || !slices.Equal(v, []any{"497", nil, "green"}) {
		t.Error(v, err)
	}
	if n, err := c.DBSize(ctx).Result(); n != 9 || err != nil {
		t.Error(n, err)
	}
	if n, err := c.Exists(ctx, "k0", "k0", "none").Result(); n != 2 || err != nil {
		t.Error(n, err)
	}
	if n, err := c.Del(ctx, "k0", "k1", "none").Result(); n != 2 || err != nil {
		t.Error(n, err)
	}

	// A client that is cut in the midst of a command, and one that sends no command, disturb nobody.
	for _, in := range []string{"*3\r\n$3\r\nSET\r\n$6\r\ncolour\r\n$3\r\nr", "*1\r\n:1\r\n", "\x00\xff\n"} {
		conn, err := net.Dial("unix", socket)
		ok(err)
		_, _ = conn.Write([]byte(in))
		ok(conn.(*net.UnixConn).CloseWrite())
		_, err = io.Copy(io.Discard, conn)
		ok(err)
		conn.Close()
	}
	// 32 commands and an empty one are answered; a browser's form is not.
	conn, err := net.Dial("unix", socket)
	ok(err)
	_, _ = conn.Write([]byte(strings.Repeat("*1\r\n$4\r\nPING\r\n", 32) + "\r\n"))
	_, err = io.ReadFull(conn, make([]byte, 32*len("+PONG\r\n")))
	ok(err)
	_, _ = conn.Write([]byte("POST / HTTP/1.1\r\nHost: x\r\n\r\nSET evil 1\r\n"))
	if rest, _ := io.ReadAll(conn); len(rest) != 0 {
		t.Errorf("a form is answered %q", rest)
	}
	conn.Close()
	for _, c := range []struct{ line, want string }{
		{"SET k v EX 10", "one of the options NX and XX"}, {"SET padded 007", "+OK"}, {"INCR padded", "not an integer"},
		{"INCRBY counter +5", "not an integer"}, {`SET q "a b"`, "quotes"}, {"GET evil", "$-1"},
	} {
		conn, err := net.Dial("unix", socket)
		ok(err)
		_, _ = conn.Write([]byte(c.line + "\r\n"))
		if got, err := bufio.NewReader(conn).ReadString('\n'); !strings.Contains(got, c.want) {
			t.Errorf("%s: %q %v", c.line, got, err)
		}
		conn.Close()
	}
	// A client that sends a command and half of the next one is answered.
	conn, err = net.Dial("unix", socket)
	ok(err)
	defer conn.Close()
	_, _ = conn.Write([]byte("*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPI"))
	if line, err := bufio.NewReader(conn).ReadString('\n'); line != "+PONG\r\n" {
		t.Error(line, err)
	}
	if v, err := c.Get(ctx, "colour").Result(); v != "green" || err != nil {
		t.Error(v, err)
	}

	if _, err := exec.LookPath("redis-benchmark"); err != nil {
		t.Log("redis-cli and redis-benchmark are not run: package redis-tools is not installed")
		return
	}
	out, err := exec.CommandContext(ctx, "redis-cli", "-s", socket, "get", "colour").CombinedOutput()
	if string(out) != "green\n" || err != nil {
		t.Errorf("redis-cli: %s %v", out, err)
	}
	out, err = exec.CommandContext(ctx, "redis-benchmark", "-s", socket, "-t", "ping,set,get,incr", "-n", "1000", "-c", "10", "-P", "16", "-r", "300", "-q").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "GET: ") || strings.Contains(string(out), "WARNING") {
		t.Errorf("redis-benchmark: %v\n%s", err, out)
	}
	ok(context.Cause(ctx))
}
