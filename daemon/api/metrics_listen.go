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

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/control"
)

// Bounds of the listeners for metrics (ours).
const (
	metricsConns = 16          // connections of each; further ones wait in the kernel
	metricsTime  = time.Second // how old an answer may be: so often the engine is asked
)

// boundedListener accepts as many connections as room has.
type boundedListener struct {
	net.Listener
	room chan struct{}
	done chan struct{} // closed by Close
	once *sync.Once
}

// Accept implements net.Listener. Whoever takes a connection empties room of one
// when it is closed.
func (l boundedListener) Accept() (net.Conn, error) {
	select {
	case l.room <- struct{}{}:
	case <-l.done:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.room
	}
	return c, err
}

// Close implements net.Listener.
func (l boundedListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Listener.Close()
}

// metricsServer answers GET /metrics, and nothing else, to whoever reaches it: sums
// over all users, of which nothing can be changed.
func metricsServer(log *slog.Logger, metrics func(context.Context) ([]byte, error), room chan struct{}) *http.Server {
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
		}),
		ReadHeaderTimeout: controlReadTime,
		ReadTimeout:       controlReadTime,
		WriteTimeout:      controlWriteTime,
		IdleTimeout:       controlIdleTime,
		MaxHeaderBytes:    controlHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateClosed || s == http.StateHijacked {
				<-room
			}
		},
	}
	// One answer a connection: those that are kept open would leave others no room.
	srv.SetKeepAlivesEnabled(false)
	return srv
}

// serveMetrics serves the listeners for metrics until stop is called.
func serveMetrics(log *slog.Logger, metrics func(context.Context) ([]byte, error), listeners []net.Listener) (stop func()) {
	var servers []*http.Server
	var serving sync.WaitGroup
	for _, l := range listeners {
		room := make(chan struct{}, metricsConns)
		server := metricsServer(log, metrics, room)
		servers = append(servers, server)
		serving.Go(func() {
			err := server.Serve(boundedListener{l, room, make(chan struct{}), new(sync.Once)})
			if !errors.Is(err, http.ErrServerClosed) {
				log.Error("listener for metrics", "address", l.Addr(), "err", err)
			}
		})
	}
	return func() {
		for _, s := range servers {
			_ = s.Close() // a client whose request is cut off may ask again
		}
		serving.Wait()
	}
}

// scraped keeps the metrics for a while.
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

// ListenMetrics makes the listener of --metrics-listen, nil where there is none.
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

// listenRemedy says what to do where a TCP address cannot be listened on. The unit gives
// a service no network (contrib/systemd/pfd.service).
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
