package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/daemon/control"
)

//go:embed ui
var uiFiles embed.FS

// uiPolicy allows the page to load its own files and to connect to its own server only.
const uiPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Bounds of the page's server. Values are defined by this project.
const (
	uiReaders    = 8 // pages that are open at the same time
	uiReadTime   = 5 * time.Second
	uiWriteTime  = 10 * time.Second
	uiHeaderSize = 16 << 10
)

func (a *app) uiCommand() *cobra.Command {
	var listen string
	c := &cobra.Command{
		Use:   "ui",
		Short: "Serve a page that shows faults, links and transfers live",
		Long: `ui serves a page for a browser on this machine and prints its address. The page shows
nodes, links and channels; single faults with their stages; waterfalls of the last
faults; and a histogram of each stage.

The page is read-only. It shows everything that the user of this command may see to all
users who know the address: keep the address secret. The server listens on a loopback
address until it is interrupted. From another machine use ssh -L PORT:127.0.0.1:PORT,
with --listen 127.0.0.1:PORT here.`,
		Args: maxArgs(0),
		RunE: a.asking(func(cmd *cobra.Command, c *control.Client, _ []string) error {
			if a.format == formatCSV {
				return usagef("-o csv: ui prints an address, as text or JSON")
			}
			if _, err := c.Status(cmd.Context()); err != nil {
				return err
			}
			return a.serveUI(cmd.Context(), c, listen)
		}),
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "loopback address and port to listen on; port 0 means any free port")
	return c
}

// loopback checks an address to listen on.
func loopback(listen string) error {
	at, err := netip.ParseAddrPort(listen)
	if err != nil || !at.Addr().IsLoopback() {
		return usagef("--listen %s: want a loopback address and a port, as 127.0.0.1:8080 or [::1]:0", listen)
	}
	return nil
}

func (a *app) serveUI(ctx context.Context, c *control.Client, listen string) error {
	if err := loopback(listen); err != nil {
		return err
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("--listen %s: %w: choose another port, 0 for any", listen, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	token := rand.Text() // at least 128 bits
	files, err := fs.Sub(uiFiles, "ui")
	if err != nil {
		return fmt.Errorf("the page: %w", err)
	}
	srv := &http.Server{
		Handler:           uiHandler(token, l.Addr().String(), files, newFeed(ctx, c)),
		ReadHeaderTimeout: uiReadTime, ReadTimeout: uiReadTime, IdleTimeout: time.Minute,
		MaxHeaderBytes: uiHeaderSize,
		BaseContext:    func(net.Listener) context.Context { return ctx },
	}
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	url := fmt.Sprintf("http://%s/%s/", l.Addr(), token)
	if a.wantJSON() {
		err = a.printJSON(struct {
			Version int    `json:"version"`
			URL     string `json:"url"`
		}{control.Version, url})
	} else {
		_, err = fmt.Fprintln(a.out, url)
		fmt.Fprintln(a.err, "Open it in a browser on this machine; ctrl-C ends the server. All users who know this address see what you may see.")
	}
	if err != nil {
		return errors.Join(err, l.Close())
	}
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("the page's server: %w", err)
	}
	return nil
}

// uiHandler serves the files and the events under /TOKEN/. at is the listener's address.
// It refuses a request that names another host: such a request comes from a page whose name
// was bound to this address (DNS rebinding).
func uiHandler(token, at string, files fs.FS, f *feed) http.Handler {
	pages := http.FileServerFS(files)
	port := at[strings.LastIndex(at, ":")+1:]
	readers := make(chan struct{}, uiReaders)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", uiPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer") // the token is in the address
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if r.Host != at && r.Host != "localhost:"+port {
			http.Error(w, "this server is "+at, http.StatusMisdirectedRequest)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "the page is read-only", http.StatusMethodNotAllowed)
			return
		}
		key, rest, inside := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		if subtle.ConstantTimeCompare([]byte(key), []byte(token)) != 1 {
			http.Error(w, "use the address that exanetctl ui printed", http.StatusNotFound)
			return
		}
		if !inside {
			http.Redirect(w, r, "/"+token+"/", http.StatusMovedPermanently)
			return
		}
		if rest != "events" {
			http.StripPrefix("/"+token, pages).ServeHTTP(w, r)
			return
		}
		select {
		case readers <- struct{}{}:
			defer func() { <-readers }()
			sendEvents(w, r, f)
		default:
			http.Error(w, fmt.Sprintf("%d pages are open: close one", uiReaders), http.StatusServiceUnavailable)
		}
	})
}

// sendEvents sends the feed's events as server-sent events until the reader disconnects or
// does not read for uiWriteTime.
func sendEvents(w http.ResponseWriter, r *http.Request, f *feed) {
	w.Header().Set("Content-Type", "text/event-stream")
	events := f.join()
	defer f.leave(events)
	rc := http.NewResponseController(w)
	for {
		if rc.Flush() != nil {
			return
		}
		select {
		case e := <-events:
			if rc.SetWriteDeadline(time.Now().Add(uiWriteTime)) != nil {
				return
			}
			if _, err := w.Write(e); err != nil {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}
