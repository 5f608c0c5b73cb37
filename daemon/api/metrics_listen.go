package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/daemon/control"
)

// Bounds of the listeners for metrics. Values below are defined by this project.
const (
	metricsConns = 16          // connections of each listener; further ones wait in the kernel
	metricsTime  = time.Second // age of an answer
)

// metricsHandler answers GET /metrics, and nothing else, to every client: sums over all users.
func metricsHandler(metrics func(context.Context) ([]byte, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != control.PathMetrics || r.Method != http.MethodGet {
			code := http.StatusNotFound
			if r.URL.Path == control.PathMetrics {
				w.Header().Set("Allow", http.MethodGet)
				code = http.StatusMethodNotAllowed
			}
			http.Error(w, "GET "+control.PathMetrics+" is all that is here", code)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), controlAnswerTime)
		defer cancel()
		text, err := metrics(ctx)
		writeMetrics(w, text, err)
	}
}

// serveMetrics serves the listeners for metrics until stop is called.
func serveMetrics(log *slog.Logger, metrics func(context.Context) ([]byte, error), listeners []net.Listener) (stop func()) {
	server := newHTTPServer(log, metricsHandler(metrics))
	// One answer a connection: connections that are kept open would leave others no room.
	server.SetKeepAlivesEnabled(false)
	var serving sync.WaitGroup
	for _, l := range listeners {
		serving.Go(func() {
			if err := server.Serve(netutil.LimitListener(l, metricsConns)); !errors.Is(err, http.ErrServerClosed) {
				log.Error("listener for metrics", "address", l.Addr(), "err", err)
			}
		})
	}
	return func() {
		_ = server.Close() // a client whose request is cut off may ask again
		serving.Wait()
	}
}

// scraped keeps an answer for metricsTime, so that clients cannot ask the engine more often.
type scraped struct {
	look func(context.Context) ([]byte, error)
	mu   sync.Mutex
	at   time.Time
	text []byte
}

func (s *scraped) get(ctx context.Context) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.text != nil && time.Since(s.at) < metricsTime {
		return s.text, nil
	}
	text, err := s.look(ctx)
	if err == nil {
		s.text, s.at = text, time.Now()
	}
	return text, err
}

// ListenMetrics returns the listener of --metrics-listen, nil for "".
func ListenMetrics(address string) (net.Listener, error) {
	if address == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--metrics-listen: %w: %s", err, listenRemedy(err, os.Getenv("NOTIFY_SOCKET") != ""))
	}
	return l, nil
}

// listenRemedy returns the remedy for an error of listening on a TCP address. The unit
// contrib/systemd/pfd.service permits no network.
func listenRemedy(err error, service bool) string {
	switch {
	case service && !errors.Is(err, unix.EADDRINUSE):
		return "the unit pfd.service gives pfd no network: install its drop-in /usr/share/exanet/systemd/metrics.conf as /etc/systemd/system/pfd.service.d/metrics.conf " +
			"(its port is 9482), then systemctl daemon-reload and systemctl restart pfd"
	case errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EPERM):
		return "a filter of this process's surroundings (seccomp, a security module) refuses it"
	}
	return "name another address and port"
}
