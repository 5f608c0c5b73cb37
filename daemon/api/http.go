package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/wire"
)

// Bounds of the control interface (ours).
const (
	controlConnsPerUID = 32
	controlConns       = 256 // of all uids
	controlHeaderBytes = 16 << 10
	controlReadTime    = 5 * time.Second
	controlWriteTime   = 30 * time.Second
	controlAnswerTime  = 25 * time.Second
	controlIdleTime    = time.Minute
	// ownerTime bounds one wait for the goroutine that owns the windows.
	ownerTime = 5 * time.Second
)

// query is a request after its checks.
type query struct {
	peer   peer
	node   int // or control.AllNodes
	n      int
	snap   int // bytes of a packet, 0: all
	window string
	slot   int // -1: not given
	pdid   device.PDID
}

// failure is an answer other than 200.
type failure struct {
	status int
	code   string
	text   string
}

func (f *failure) Error() string { return f.text }

func badRequest(format string, args ...any) error {
	return &failure{http.StatusBadRequest, control.CodeBadRequest, fmt.Sprintf(format, args...)}
}

// endpoint is one row of the control interface: what it answers, and which
// query keys it knows beside none.
type endpoint struct {
	path   string
	keys   []string
	answer func(context.Context, *query) (any, error)
	// stream, in place of answer, writes until the client leaves.
	stream func(http.ResponseWriter, *http.Request, *query)
	// post: it changes something, takes POST alone, and wants each of its keys.
	post bool
}

type (
	peerKey struct{}
	connKey struct{}
)

// controlServer makes the HTTP server of the control socket.
func controlServer(log *slog.Logger, nodes int, endpoints []endpoint, metrics func(context.Context, *query) ([]byte, error), wait func(context.Context, peer)) *http.Server {
	mux := http.NewServeMux()
	var paths []string
	for _, e := range endpoints {
		paths = append(paths, e.path)
		mux.HandleFunc(e.path, func(w http.ResponseWriter, r *http.Request) {
			q, err := parse(r, e, nodes)
			if err != nil {
				reply(w, nil, err)
				return
			}
			if e.stream != nil {
				e.stream(w, r, q)
				return
			}
			ctx, cancel := context.WithTimeout(r.Context(), controlAnswerTime)
			defer cancel()
			wait(ctx, q.peer)
			v, err := e.answer(ctx, q)
			reply(w, v, err)
		})
	}
	mux.HandleFunc(control.PathMetrics, func(w http.ResponseWriter, r *http.Request) {
		q, err := parse(r, endpoint{}, nodes)
		if err != nil {
			reply(w, nil, err)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), controlAnswerTime)
		defer cancel()
		wait(ctx, q.peer)
		text, err := metrics(ctx, q)
		writeMetrics(w, text, err)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		reply(w, nil, &failure{http.StatusNotFound, control.CodeNotFound,
			fmt.Sprintf("no endpoint %s: the endpoints are %s and %s", r.URL.Path, strings.Join(paths, ", "), control.PathMetrics)})
	})
	return &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: controlReadTime,
		ReadTimeout:       controlReadTime,
		WriteTimeout:      controlWriteTime,
		IdleTimeout:       controlIdleTime,
		MaxHeaderBytes:    controlHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if pc, ok := c.(*peerConn); ok {
				return context.WithValue(context.WithValue(ctx, peerKey{}, pc.peer), connKey{}, pc)
			}
			return ctx
		},
	}
}

func writeMetrics(w http.ResponseWriter, text []byte, err error) {
	if err != nil {
		reply(w, nil, err)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	// An error here is a client that left; nobody is there to be told.
	_, _ = w.Write(text)
}

// parse checks the whole request before anything is done for it.
func parse(r *http.Request, e endpoint, nodes int) (*query, error) {
	p, ok := r.Context().Value(peerKey{}).(peer)
	if !ok {
		return nil, &failure{http.StatusForbidden, control.CodeForbidden, "the kernel did not say who asks"}
	}
	method := http.MethodGet
	if e.post {
		method = http.MethodPost
	}
	if r.Method != method {
		return nil, &failure{http.StatusMethodNotAllowed, control.CodeMethod, fmt.Sprintf("%s: %s takes %s only", r.Method, r.URL.Path, method)}
	}
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badRequest("query %q: %v", r.URL.RawQuery, err)
	}
	q := &query{peer: p, node: control.AllNodes, n: control.MaxFaults, slot: -1}
	for _, k := range e.keys {
		if e.post && len(values[k]) == 0 {
			return nil, badRequest("%s wants each of %q", r.URL.Path, e.keys)
		}
	}
	for key, list := range values {
		known := false
		for _, k := range e.keys {
			known = known || k == key
		}
		if !known || len(list) != 1 {
			return nil, badRequest("query key %q: %s takes each of %q once", key, r.URL.Path, e.keys)
		}
		v := list[0]
		switch key {
		case "node":
			if q.node, err = strconv.Atoi(v); err != nil || q.node < 0 || q.node >= nodes {
				return nil, badRequest("node %q: this pfd has nodes 0 to %d", v, nodes-1)
			}
		case "n":
			if q.n, err = strconv.Atoi(v); err != nil || q.n < 1 || q.n > control.MaxFaults {
				return nil, badRequest("n %q: want 1 to %d", v, control.MaxFaults)
			}
		case "snap":
			if q.snap, err = strconv.Atoi(v); err != nil || q.snap < 0 || q.snap > wire.MaxPacket {
				return nil, badRequest("snap %q: want 1 to %d bytes of each packet, or 0 for all", v, wire.MaxPacket)
			}
		case "slot":
			if q.slot, err = strconv.Atoi(v); err != nil || q.slot < 0 || q.slot >= device.Slots {
				return nil, badRequest("slot %q: a node has slots 0 to %d", v, device.Slots-1)
			}
		case "pdid":
			n, err := strconv.ParseUint(v, 0, 16)
			if err != nil || n == 0 || n > uint64(device.MaxPDID) {
				return nil, badRequest("pdid %q: want 1 to 65534, as `exanetctl domain` shows it", v)
			}
			q.pdid = device.PDID(n)
		case "window":
			for w := range device.Windows {
				if w.String() == v {
					q.window = v
				}
			}
			if q.window == "" {
				return nil, badRequest("window %q: want pl, smmu, btcm, pktz or mbox", v)
			}
		}
	}
	return q, nil
}

// leftTime is between two looks at whether the client of a stream has left (ours).
const leftTime = 5 * time.Second

// stream gives a context that ends when the client of a stream leaves, or pfd ends.
// Package http does not see one leave that has sent more than its request.
func (d *Daemon) stream(r *http.Request) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(r.Context())
	go func() {
		defer cancel()
		tick := time.NewTicker(leftTime)
		defer tick.Stop()
		for {
			select {
			case <-d.leaving:
				return
			case <-ctx.Done():
				return
			case <-tick.C:
				if c, ok := ctx.Value(connKey{}).(*peerConn); ok && c.left() {
					return
				}
			}
		}
	}()
	return ctx, cancel
}

// reply writes an answer or an error as JSON.
func reply(w http.ResponseWriter, v any, err error) {
	status := http.StatusOK
	if err != nil {
		f := &failure{http.StatusInternalServerError, control.CodeInternal, err.Error()}
		switch {
		case errors.As(err, &f):
		case errors.Is(err, device.ErrGone):
			f.status, f.code = http.StatusServiceUnavailable, control.CodeDeviceGone
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
			f.status, f.code = http.StatusGatewayTimeout, control.CodeTimeout
			f.text = "the device did not answer in time: pfd is busy or its engine is stuck: try again, and see pfd's log"
		}
		status = f.status
		v = control.ErrorReply{Version: control.Version, Code: f.code, Error: f.text}
	}
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, `{"version":1,"code":"internal","error":"the answer has no JSON form"}`, http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// An error here is a client that left; nobody is there to be told.
	_, _ = w.Write(append(body, '\n'))
}
