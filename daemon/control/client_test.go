package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// serve answers every request on a unix socket by h and returns a client of it.
func serve(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "pfd.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	c, err := New(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		srv.Close()
		<-done
	})
	return c
}

func TestClientAsksAndDecodes(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.RequestURI() {
		case "/v1/status":
			fmt.Fprint(w, `{"version":1,"daemon_version":"1.2","nodes":2,"pinned_bytes":0,"new_key":{}}`)
		case "/v1/faults?n=7&node=1":
			fmt.Fprint(w, `{"version":1,"faults":[{"node":1,"page":"0x7f0000001000","kind":"minor"}]}`)
		case "/v1/registers?node=0&window=pl":
			fmt.Fprint(w, `{"version":1,"registers":[{"name":"ID","value":"0x4e415845"}]}`)
		case "/metrics":
			fmt.Fprint(w, "exanet_pinned_bytes 0\n")
		default:
			t.Errorf("asked for %s", r.URL.RequestURI())
		}
	})
	ctx := context.Background()
	s, err := c.Status(ctx)
	if err != nil || s.DaemonVersion != "1.2" || s.Nodes != 2 {
		t.Errorf("Status = %+v, %v", s, err)
	}
	f, err := c.Faults(ctx, 1, 7)
	if err != nil || len(f) != 1 || f[0].Page != 0x7f0000001000 || f[0].Kind != "minor" {
		t.Errorf("Faults = %+v, %v", f, err)
	}
	r, err := c.Registers(ctx, 0, "pl")
	if err != nil || len(r) != 1 || *r[0].Value != 0x4e415845 {
		t.Errorf("Registers = %+v, %v", r, err)
	}
	if m, err := c.Metrics(ctx); err != nil || m != "exanet_pinned_bytes 0\n" {
		t.Errorf("Metrics = %q, %v", m, err)
	}
}

func TestClientNamesWhatIsWrong(t *testing.T) {
	for _, tc := range []struct {
		name   string
		status int
		body   string
		is     error
		text   string
	}{
		{"another version", 200, `{"version":2}`, ErrVersion, "of one release"},
		{"not JSON", 200, `<html>`, nil, "not JSON"},
		{"refused", 403, `{"version":1,"code":"forbidden","error":"registers are for root"}`, ErrForbidden, "registers are for root"},
		{"refused in other words", 500, `oops`, nil, "500"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tc.status)
				fmt.Fprint(w, tc.body)
			})
			_, err := c.Status(context.Background())
			if err == nil || !strings.Contains(err.Error(), tc.text) {
				t.Fatalf("error %v, want one with %q", err, tc.text)
			}
			if tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("error %v does not match %v", err, tc.is)
			}
		})
	}
}

func TestClientWithoutADaemon(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for _, socket := range []string{stale, filepath.Join(dir, "none.sock")} {
		c, err := New(socket)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Status(context.Background())
		if !errors.Is(err, ErrNoDaemon) {
			t.Errorf("%s: %v, want ErrNoDaemon", socket, err)
		} else if want := "pfd --nodes 2 --socket " + socket; !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say how to start one: %q", err, want)
		}
	}
}

func TestClientEndsWithItsContext(t *testing.T) {
	asked, end := make(chan struct{}), make(chan struct{})
	c := serve(t, func(http.ResponseWriter, *http.Request) {
		close(asked)
		<-end
	})
	defer close(end)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-asked
		cancel()
	}()
	if _, err := c.Status(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, ErrNoDaemon) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}

// The error does not tell a user to start a pfd that only root can start.
func TestRemedy(t *testing.T) {
	for _, c := range []struct {
		socket string
		euid   int
		want   string
	}{
		{"/x", 7, "--socket /x"},
		{"/run/exanet/pfd.sock", 0, "--socket /run/exanet/pfd.sock"},
		{"/run/exanet/pfd.sock", 7, "of your own with `pfd --nodes 2 --socket PATH`"},
	} {
		if got := remedy(c.socket, c.euid); !strings.Contains(got, c.want) {
			t.Errorf("%s for %d: %s", c.socket, c.euid, got)
		}
	}
}

// A stopped pfd does not block a client for ever.
func TestClientOfADaemonThatDoesNotAnswer(t *testing.T) {
	end := make(chan struct{})
	c := serve(t, func(http.ResponseWriter, *http.Request) { <-end })
	defer close(end)
	c.http.Transport.(*http.Transport).ResponseHeaderTimeout = time.Millisecond
	_, err := c.Status(t.Context())
	if !errors.Is(err, ErrNoDaemon) || !strings.Contains(err.Error(), "does not answer") || !strings.Contains(err.Error(), c.Socket()) {
		t.Errorf("error %v", err)
	}
}

func TestClientThatIsDropped(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		conn.Close()
	})
	_, err := c.Status(context.Background())
	if err == nil || errors.Is(err, ErrNoDaemon) || !strings.Contains(err.Error(), "closed the connection") {
		t.Errorf("error %v", err)
	}
}

// Whatever the socket answers, the client returns an error or the answer.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"version":1,"state":"ready","nodes":2}`))
	f.Add([]byte(`{"version":9}`))
	f.Add([]byte(`{"version":1,"faults":[{"node":0}],"channels":[{}],"domains":null}`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &Client{socket: "/s"}
		for _, answer := range []any{&Status{}, &Faults{}, &Channel{}, &Transaction{}, &Domain{}, &Counter{}, &Registers{}, &FIFO{}, &SMMUBank{}, &Node{}} {
			err := c.decode("/", b, answer)
			if err == nil && !json.Valid(b) {
				t.Fatalf("%T taken from %q", answer, b)
			}
		}
	})
}
