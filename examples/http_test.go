package examples

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A server and clients of net/http, as processes, whose connections are streams.
func TestHTTP(t *testing.T) {
	server, client, pfd := program(t, "http/server"), program(t, "http/client"), start(t)
	dir := t.TempDir()
	large := make([]byte, 10<<20)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range large {
		large[i] = byte(r.Uint32())
	}
	for name, b := range map[string][]byte{"hello": []byte("hello, stream\n"), "large": large} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	addr := line(t, background(t, exec.Command(server, "-socket", pfd.Socket(), dir)))
	for _, c := range []struct {
		args []string
		says string // of the error, if it fails
		want []byte
	}{
		{[]string{addr, "/hello", "/large", "/hello"}, "", append(append([]byte("hello, stream\n"), large...), "hello, stream\n"...)},
		{[]string{addr, "/nothing"}, "404", nil},
		{[]string{strings.TrimSuffix(addr, "/80") + "/81", "/hello"}, "connection refused: nobody listens on the port", nil},
		{[]string{"exanet:1/31/80", "/hello"}, "connection refused: no process", nil},
		{[]string{"localhost:80", "/hello"}, "exanet:NODE/INTERFACE/PORT", nil},
	} {
		var out, stderr bytes.Buffer
		cmd := exec.CommandContext(ctx, client, append([]string{"-socket", pfd.Socket()}, c.args...)...)
		cmd.Stdout, cmd.Stderr = &out, &stderr
		err := cmd.Run()
		if c.says == "" && (err != nil || !bytes.Equal(out.Bytes(), c.want)) || c.says != "" && (err == nil || !strings.Contains(stderr.String(), c.says)) {
			t.Errorf("%v: %v, %d bytes, %s", c.args, err, out.Len(), stderr.String())
		}
	}
}
