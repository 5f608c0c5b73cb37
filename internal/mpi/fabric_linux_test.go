package mpi

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

func TestInfo(t *testing.T) {
	Need(t, "fi_info")
	dir, p := provider(t), start(t, "--nodes", "1")
	for _, name := range []string{"exanet", Layered} {
		if out := Output(t, command(t, p, dir, "", "fi_info", "-p", name)); !strings.Contains(out, "provider: "+name+"\n") {
			t.Errorf("fi_info -p %s prints\n%s", name, out)
		}
	}
	if out := Output(t, command(t, p, dir, "", "fi_info", "-e")); strings.Count(out, "# FI_EXANET_") != 4 {
		t.Errorf("fi_info -e does not list four parameters:\n%s", out)
	}
	p.left(t)
	short := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(short, []byte("not a key"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, set, says string }{
		{"no pfd", "FI_EXANET_SOCKET=" + filepath.Join(dir, "none.sock"), "start one (pfd --socket "},
		{"an older pfd", "FI_EXANET_SOCKET=" + olderPfd(t), "pfd (exanet 0.0.1) speaks version 1 of the protocol, this library "},
		{"no such node", "FI_EXANET_NODE=9", "set FI_EXANET_NODE to a node that exanetctl status lists"},
		{"no number", "FI_EXANET_NODE=first", ""},
		{"a long name", "FI_EXANET_GROUP=" + strings.Repeat("g", 64), "a group's name has 1 to 63 characters"},
		{"no key", "FI_EXANET_KEY_FILE=" + short + ".none", "no such file or directory: make it with: head -c 32 /dev/urandom"},
		{"a short key", "FI_EXANET_KEY_FILE=" + short, "a key has exactly 32 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := command(t, p, dir, "exanet", "fi_info", "-p", "exanet")
			cmd.Env = append(cmd.Env, c.set, "FI_LOG_LEVEL=warn")
			out, err := cmd.CombinedOutput()
			if c.says == "" { // libfabric itself reads the number, and uses the default
				if err != nil {
					t.Errorf("%v\n%s", err, out)
				}
				return
			}
			if err == nil || bytes.Contains(out, []byte("provider: exanet")) || !bytes.Contains(bytes.ToLower(out), []byte(strings.ToLower(c.says))) {
				t.Errorf("%v, does not say %q:\n%s", err, c.says, out)
			}
		})
	}
}

// olderPfd answers as a pfd of an older release and returns its socket.
func olderPfd(t *testing.T) string {
	socket := filepath.Join(t.TempDir(), "pfd.sock")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket + attach.SocketSuffix, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	refusal := (&attach.RefusedError{Product: "exanet 0.0.1", Code: attach.CodeVersion, Text: "version 2"}).Append(nil)
	refusal[2] = 1 // the version of the protocol (docs/attach.md 2)
	served := make(chan error)
	go func() {
		served <- attach.Serve(t.Context(), l, func(ctx context.Context, c *attach.Conn) {
			var hello [attach.MaxMessage]byte
			if _, _, err := c.Receive(ctx, hello[:]); err == nil {
				_ = c.Send(refusal)
			}
		})
	}()
	t.Cleanup(func() {
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return socket
}

// A pfd of another user, who is not the machine's, may not access a rank's memory.
func TestStranger(t *testing.T) {
	Need(t, "fi_info")
	if os.Getuid() != 0 {
		t.Skip("another user's pfd needs root")
	}
	dir, own := provider(t), start(t)
	work := t.TempDir()
	for _, d := range []string{bin, filepath.Dir(work)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(work, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(work, "pfd.sock")
	c := exec.Command(filepath.Join(bin, "pfd"), "--socket", socket)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	}()
	for _, err := os.Stat(socket); err != nil; _, err = os.Stat(socket) {
		time.Sleep(10 * time.Millisecond)
	}
	cmd := command(t, own, dir, "exanet", "fi_info", "-p", "exanet")
	cmd.Env = append(cmd.Env, "FI_LOG_LEVEL=warn", "FI_EXANET_SOCKET="+socket)
	out, err := cmd.CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("another user serves the socket")) || !bytes.Contains(out, []byte("set FI_EXANET_SOCKET to a pfd of your own")) {
		t.Errorf("%v\n%s", err, out)
	}
}

// Groups are named after jobs, whose names may be longer, and have characters that a group's has not.
func TestGroup(t *testing.T) {
	Need(t, "fi_info")
	dir, p := provider(t), start(t)
	long := strings.Repeat("long", 20)
	for _, job := range []string{"prterun-host:1@1", long + "-12@1", "2137522178", "60001"} {
		cmd := command(t, p, dir, "exanet", "fi_info", "-p", "exanet")
		cmd.Env = append(cmd.Env, "PMIX_NAMESPACE="+job)
		Output(t, cmd)
	}
	p.end(syscall.SIGTERM)
	for _, group := range []string{"prterun-host_1", long[len(long)-57:] + "-12", "32616", "60001"} {
		if !strings.Contains(p.err.String(), " group=fi-"+group+" ") {
			t.Errorf("no process was in group fi-%s", group)
		}
	}
}

// A process takes a place on another node if one is full. If all are, that is no error of fi_info:
// it lists no provider, and a warning says why.
func TestNodeFull(t *testing.T) {
	Need(t, "fi_info")
	dir, p := provider(t), start(t, "--nodes", "2", "--quota", "1")
	for node, says := range []string{"src_addr: fi_sockaddr_in://240.0.0.1:", "no other node has a place either"} {
		holder, err := rdma.Attach(t.Context(), rdma.Options{Socket: p.client.Socket(), Node: device.NodeID(node)})
		if err != nil {
			t.Fatal(err)
		}
		defer holder.Close()
		cmd := command(t, p, dir, "exanet", "fi_info", "-v", "-p", "exanet")
		cmd.Env = append(cmd.Env, "FI_LOG_LEVEL=warn")
		out, err := cmd.CombinedOutput()
		if (err == nil) != (node == 0) || !bytes.Contains(out, []byte(says)) {
			t.Errorf("%v\n%s", err, out)
		}
		cmd = command(t, p, dir, "exanet", "fi_info", "-p", "exanet")
		cmd.Env = append(cmd.Env, "FI_LOG_LEVEL=warn", "FI_EXANET_NODE=0")
		if out, err := cmd.CombinedOutput(); err == nil || !bytes.Contains(out, []byte("set FI_EXANET_NODE to another node, or unset it")) {
			t.Errorf("%v\n%s", err, out)
		}
	}
}

// freePort returns a TCP port for fi_pingpong's own connection.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

func TestPingpong(t *testing.T) {
	Need(t, "fi_pingpong")
	dir, p := provider(t), start(t)
	for _, c := range []struct{ provider, kind string }{{"exanet", "msg"}, {Layered, "rdm"}} {
		t.Run(c.kind, func(t *testing.T) {
			port := freePort(t)
			server := command(t, p, dir, c.provider, "fi_pingpong", "-p", c.provider, "-e", c.kind, "-c", "-I", "20", "-S", "all", "-B", port)
			server.Env = append(server.Env, "FI_EXANET_NODE=1")
			var said bytes.Buffer
			server.Stdout, server.Stderr = &said, &said
			if err := server.Start(); err != nil {
				t.Fatal(err)
			}
			client := func() *exec.Cmd {
				return command(t, p, dir, c.provider, "fi_pingpong", "-p", c.provider, "-e", c.kind, "-c", "-I", "20", "-S", "all", "-P", port, "127.0.0.1")
			}
			for !listens(port) {
				time.Sleep(10 * time.Millisecond)
			}
			out := Output(t, client())
			if err := server.Wait(); err != nil {
				t.Errorf("server: %v\n%s", err, said.String())
			}
			if !strings.Contains(out, "\n1m ") {
				t.Errorf("no messages of 1 MiB:\n%s", out)
			}
			p.left(t)
		})
	}
}

// listens reports whether a TCP port has a listener.
func listens(port string) bool {
	n, _ := strconv.Atoi(port)
	tcp, err := os.ReadFile("/proc/net/tcp")
	return err == nil && bytes.Contains(tcp, []byte(":"+strings.ToUpper(strconv.FormatInt(int64(n)+0x10000, 16)[1:])+" 00000000:0000 0A"))
}

// The calls of libfabric against their manual pages, as they are, under the address sanitizer and
// under valgrind.
func TestCalls(t *testing.T) {
	Need(t)
	p := start(t)
	for _, c := range []struct{ name, flags, under string }{
		{"plain", "-O2", ""},
		{"sanitized", "-O1 -fsanitize=address,undefined", ""},
		{"valgrind", "-O2", "valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite"},
	} {
		t.Run(c.name, func(t *testing.T) {
			flags, under := strings.Fields(c.flags), strings.Fields(c.under)
			Need(t, under[:min(1, len(under))]...)
			dir := provider(t, flags...)
			calls := filepath.Join(dir, "calls")
			args := append([]string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-I", dir, "-o", calls, "testdata/calls.c"}, flags...)
			Output(t, exec.CommandContext(t.Context(), "gcc", append(args, filepath.Join(dir, "libexanet.a"), "-lfabric", "-pthread")...))
			words := append(under, calls, p.client.Socket())
			cmd := command(t, p, dir, "exanet", words[0], words[1:]...)
			cmd.Env = append(cmd.Env, "FI_EXANET_GROUP=calls")
			// valgrind says which system calls it does not know.
			if out := Output(t, cmd); out != "" && c.under == "" {
				t.Errorf("%s", out)
			}
			p.left(t)
		})
	}
}
