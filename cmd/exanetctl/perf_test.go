package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/exanet/pfd/internal/workload"
)

// perf makes as many transfers as it reports, alone and with a process that serves a name at
// another pfd.
func TestPerf(t *testing.T) {
	dir := programs(t)
	d := startPFD(t, dir)
	serve := exec.CommandContext(t.Context(), filepath.Join(dir, "bin", "exanetctl"), "perf", "serve", "test-cli", "--socket", d.Socket())
	said, err := serve.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(said).ReadString('\n'); err != nil || !strings.HasPrefix(line, "serving test-cli") {
		t.Fatalf("%q, %v", line, err)
	}
	for _, c := range []struct {
		flags string
		code  int
		want  []string
	}{
		{"lat", exitOK, []string{"#bytes", "t_typical[usec]", "99.9%[usec]"}},
		{"lat test-cli -s 64 -n 20", exitOK, []string{"\n    64          256  "}},
		{"bw test-cli --read -n 20 --absent both --method touch", exitOK, []string{"BW peak[MB/sec]", "MsgRate[Mpps]", "65536"}},
		{"rate -n 20 -q 32 --pattern zipf --absent dst --probability 0.5 -s 4KiB -o csv", exitOK, []string{"\n4096,256,"}},
		{"lat -D 1ms --sleep", exitOK, []string{"#iterations"}},
		{"lat -a -n 1 --samples samples.csv -j", exitOK, []string{`"size_bytes":2,`, `"size_bytes":8388608,`}},
		{"lat test-cli --memory any --absent both -n 20 -j", exitOK, []string{`"memory":"any"`}},
		{"bw --memory shared --method uffd -n 20 -o json", exitOK, []string{`"memory":"any"`}},
		{"msg -n 20", exitOK, []string{"#bytes", "t_typical[usec]", "\n     8          256  "}},
		{"msg test-cli -w 6 -n 300 --samples messages.csv -o csv", exitOK, []string{"\n48,512,"}},
		{"msg -a -D 1ms -j", exitOK, []string{`"size_bytes":8,`, `"size_bytes":64,`}},
		{"msg -w 9", exitUsage, nil},
		{"msg -D 0s", exitUsage, nil},
		{"msg nobody", exitFailed, nil},
		{"stream -s 64KiB -n 300", exitOK, []string{"RDMA[MB/sec]", "stream/RDMA", "65536          512  "}},
		{"stream test-cli -s 7 -n 10 --samples stream.csv -j", exitOK, []string{`"size_bytes":7,`, `"stream_to_rdma":`}},
		{"stream -a -D 1ms -o csv", exitOK, []string{"\n8388608,"}},
		{"stream -s 0", exitUsage, nil},
		{"stream -D 0s", exitUsage, nil},
		{"stream nobody", exitFailed, nil},
		{"lat --memory some", exitUsage, nil},
		{"lat nobody", exitFailed, nil},
		{"lat --absent all", exitUsage, nil},
		{"bw -q 33", exitUsage, nil},
		{"bw --pattern sideways", exitUsage, nil},
		{"lat -s 0", exitUsage, nil},
	} {
		code, out, errs := execute(t, dir, "bin/exanetctl perf "+c.flags+" --socket "+d.Socket())
		if code != c.code {
			t.Errorf("perf %s: exit code %d, %s", c.flags, code, errs)
		}
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("perf %s: no %q in\n%s", c.flags, want, out)
			}
		}
		if strings.HasPrefix(c.flags, "lat -a") {
			var lines []perfLine
			if err := json.Unmarshal([]byte(out), &lines); err != nil || len(lines) != 23 {
				t.Errorf("perf %s: %d lines, %v", c.flags, len(lines), err)
			}
		}
	}
	if _, out, _ := execute(t, dir, "bin/exanetctl perf lat -n 20 --socket "+d.Socket(), "COLUMNS=80"); widest(out) > 80 || !strings.Contains(out, "t_typical") {
		t.Errorf("on 80 columns:\n%s", out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "samples.csv"))
	if err != nil || strings.Count(string(text), "\n2,") == 0 || strings.Count(string(text), "\n8388608,") == 0 {
		t.Errorf("samples: %v in\n%.200s", err, text)
	}
	if err := serve.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := serve.Wait(); err != nil {
		t.Errorf("serve: %v", err)
	}
}

// The numbers of a line match its samples.
func TestPerfLine(t *testing.T) {
	r := workload.PerfResult{Pinned: 7}
	for i := range int64(1000) {
		r.Latencies = append(r.Latencies, 1000*(i+1))
	}
	r.Rows = []workload.PerfRow{{Transfers: 500, Bytes: 4e6, Elapsed: 2e9}, {Transfers: 500, Bytes: 4e6, Elapsed: 1e9}}
	l, err := perfLineOf(8, &r)
	if err != nil {
		t.Fatal(err)
	}
	near := func(name string, got, want float64) {
		if got < want*0.998 || got > want*1.002 { // three digits
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	near("min", l.Min, 1)
	near("max", l.Max, 1000)
	near("median", l.Typical, 500)
	near("mean", l.Average, 500.5)
	near("99 %", float64(l.P99), 990)
	near("99.9 %", float64(l.P999), 999)
	near("deviation", l.Deviation, 288.7)
	near("peak", l.Peak, 4)
	near("bandwidth", l.Bandwidth, 8.0/3)
	near("rate", l.Rate, 1000.0/3/1e6)
	if l.Iterations != 1000 || l.Pinned != 7 {
		t.Errorf("%+v", l)
	}
	r.Latencies = append(r.Latencies, 1<<60)
	if _, err := perfLineOf(8, &r); err == nil {
		t.Error("a latency of 36 years is taken")
	}
}
