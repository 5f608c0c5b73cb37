package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/link/handover"
	"github.com/exanet/pfd/soc/wire"
)

// query is a checked request.
type query struct {
	peer   Peer
	node   int // or control.AllNodes
	n      int
	snap   int // bytes of a packet, 0: all
	window string
	slot   int // -1: not given
	pdid   device.PDID
	host   string
	on     bool
	pause  time.Duration
}

// failure is an answer with a status other than 200.
type failure struct {
	status int
	code   string
	text   string
}

func (f *failure) Error() string { return f.text }

func badRequest(format string, args ...any) error {
	return &failure{http.StatusBadRequest, control.CodeBadRequest, fmt.Sprintf(format, args...)}
}

// forbidden refuses a request of a peer that does not see everything.
func forbidden(why string) error {
	return &failure{http.StatusForbidden, control.CodeForbidden, why + ": ask with CAP_SYS_PTRACE, as root has it, or as the user that pfd runs as"}
}

// parse checks a request with the keys of its endpoint, all of which a POST must have. nodes are the ids of
// the nodes.
func parse(r *http.Request, keys []string, post bool, nodes []int) (*query, error) {
	p, ok := r.Context().Value(peerKey{}).(Peer)
	if !ok {
		return nil, &failure{http.StatusForbidden, control.CodeForbidden, "the kernel did not say who asks"}
	}
	method := http.MethodGet
	if post {
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
	for _, k := range keys {
		if post && len(values[k]) == 0 {
			return nil, badRequest("%s wants each of %q", r.URL.Path, keys)
		}
	}
	for key, list := range values {
		if !slices.Contains(keys, key) || len(list) != 1 {
			return nil, badRequest("query key %q: %s takes each of %q once", key, r.URL.Path, keys)
		}
		v := list[0]
		switch key {
		case "node":
			if q.node, err = strconv.Atoi(v); err != nil || !slices.Contains(nodes, q.node) {
				return nil, badRequest("node %q: this pfd has nodes %d to %d", v, slices.Min(nodes), slices.Max(nodes))
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
		case "host":
			if !handover.ValidName(v) {
				return nil, badRequest("host %.80q: want the name of a host, as `exanetctl host` shows it", v)
			}
			q.host = v
		case "on":
			if q.on, err = strconv.ParseBool(v); err != nil {
				return nil, badRequest("on %q: want 1 or 0", v)
			}
		case "ms":
			ms, err := strconv.ParseInt(v, 10, 64)
			if q.pause = time.Duration(ms) * time.Millisecond; err != nil || ms < 1 || ms > control.MaxCut.Milliseconds() {
				return nil, badRequest("ms %q: want 1 to %d", v, control.MaxCut.Milliseconds())
			}
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

// newHTTPServer returns an HTTP server with the bounds of all listeners.
func newHTTPServer(log *slog.Logger, h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: controlReadTime, ReadTimeout: controlReadTime, WriteTimeout: controlWriteTime,
		IdleTimeout: controlIdleTime, MaxHeaderBytes: controlHeaderBytes,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
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
	// An error means that the client has left.
	_, _ = w.Write(append(body, '\n'))
}

func writeMetrics(w http.ResponseWriter, text []byte, err error) {
	if err != nil {
		reply(w, nil, err)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	// An error means that the client has left.
	_, _ = w.Write(text)
}
