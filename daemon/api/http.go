package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/exanet/pfd/daemon/control"
)

// Endpoint is one row of the control interface.
type Endpoint struct {
	Path string
	Keys []string // the query keys that it takes
	Post bool     // it changes something, takes POST alone, and needs each of its keys

	answer func(*Server, context.Context, *query) (any, error)
	// stream, in place of answer, writes until the client leaves.
	stream func(*Server, http.ResponseWriter, *http.Request, *query)
}

// Endpoints returns what the control socket answers beside the metrics. The slices in the
// answers are never nil, so that JSON has [] and not null.
func Endpoints() []Endpoint {
	node := []string{"node"}
	return []Endpoint{
		{Path: control.PathStatus, answer: (*Server).viewStatus},
		{Path: control.PathNodes, Keys: node, answer: (*Server).viewNodes},
		{Path: control.PathDomains, Keys: node, answer: (*Server).viewDomains},
		{Path: control.PathChannels, Keys: node, answer: (*Server).viewChannels},
		{Path: control.PathTransactions, Keys: node, answer: (*Server).viewTransactions},
		{Path: control.PathSMMU, Keys: node, answer: (*Server).viewSMMU},
		{Path: control.PathFIFO, Keys: node, answer: (*Server).viewFIFO},
		{Path: control.PathGSAS, answer: (*Server).viewGSAS},
		{Path: control.PathHosts, answer: (*Server).viewHosts},
		{Path: control.PathCounters, Keys: node, answer: (*Server).viewCounters},
		{Path: control.PathFaults, Keys: []string{"node", "n"}, answer: (*Server).viewFaults},
		{Path: control.PathRegisters, Keys: []string{"node", "window"}, answer: (*Server).viewRegisters},
		{Path: control.PathTrace, answer: (*Server).viewTrace},
		{Path: control.PathMonitor, Keys: node, stream: (*Server).monitor},
		{Path: control.PathCapture, Keys: []string{"node", "snap"}, stream: (*Server).capture},
		{Path: control.PathGrant, Keys: []string{"node", "slot", "pdid"}, answer: (*Server).grant, Post: true},
		{Path: control.PathKick, Keys: []string{"node", "slot"}, answer: (*Server).kick, Post: true},
		{Path: control.PathDrain, Keys: []string{"host", "on"}, answer: (*Server).drainHost, Post: true},
		{Path: control.PathCut, Keys: []string{"host", "ms"}, answer: (*Server).cutHost, Post: true},
	}
}

// nodes returns the ids of the nodes.
func (srv *Server) nodes() (ids []int) {
	for _, n := range srv.host.Nodes() {
		ids = append(ids, n.Number())
	}
	return ids
}

// Handler answers requests whose context names their peer (WithPeer).
func (srv *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	var paths []string
	// checked checks a request, waits for the peer's budget, and then calls answer.
	checked := func(e Endpoint, answer func(context.Context, http.ResponseWriter, *query)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			q, err := parse(r, e.Keys, e.Post, srv.nodes())
			if err != nil {
				reply(w, nil, err)
				return
			}
			if e.stream != nil {
				e.stream(srv, w, r, q)
				return
			}
			ctx, cancel := context.WithTimeout(r.Context(), controlAnswerTime)
			defer cancel()
			srv.budget.wait(ctx, q.peer)
			answer(ctx, w, q)
		}
	}
	for _, e := range Endpoints() {
		paths = append(paths, e.Path)
		mux.HandleFunc(e.Path, checked(e, func(ctx context.Context, w http.ResponseWriter, q *query) {
			v, err := e.answer(srv, ctx, q)
			reply(w, v, err)
		}))
	}
	mux.HandleFunc(control.PathMetrics, checked(Endpoint{}, func(ctx context.Context, w http.ResponseWriter, q *query) {
		text, err := srv.metricsFor(ctx, q)
		writeMetrics(w, text, err)
	}))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		reply(w, nil, &failure{http.StatusNotFound, control.CodeNotFound,
			fmt.Sprintf("no endpoint %s: the endpoints are %s and %s", r.URL.Path, strings.Join(paths, ", "), control.PathMetrics)})
	})
	return mux
}

// Serve answers on the control socket and on the listeners for metrics until stop is called.
func (srv *Server) Serve(l *net.UnixListener, metrics ...net.Listener) (stop func()) {
	server := newHTTPServer(srv.log, srv.Handler())
	server.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if pc, ok := c.(*peerConn); ok {
			return context.WithValue(WithPeer(ctx, pc.peer), connKey{}, pc)
		}
		return ctx
	}
	stopMetrics := serveMetrics(srv.log, (&scraped{look: srv.metrics}).get, metrics)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(newPeerListener(l, &srv.dropped)); !errors.Is(err, http.ErrServerClosed) {
			srv.log.Error("control socket", "err", err)
		}
	})
	return func() {
		// Answers that are under way may still wait for the owner of a node.
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			server.Close()
		}
		serving.Wait()
		stopMetrics()
	}
}
