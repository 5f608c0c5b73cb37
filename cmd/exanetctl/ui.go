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

	"github.com/exanet/pfd/control"
)

//go:embed ui
var uiFiles embed.FS

// uiPolicy lets the page load its own files and ask its own server, and nothing else.
const uiPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Bounds of the page's server (ours).
const (
	uiReaders    = 8 // pages that are open at a time
	uiReadTime   = 5 * time.Second
	uiWriteTime  = 10 * time.Second
	uiHeaderSize = 16 << 10
)

func (a *app) uiCommand() *cobra.Command {
	var listen string
	c := &cobra.Command{
		Use:   "ui",
		Short: "Serve a page that shows faults, links and transfers live",
		Long: `ui serves a page for a browser of this machine and prints its address: nodes, links and
channels; single faults as they go through their stages; waterfalls of the last faults,
and histograms of each stage.

The page only reads. It shows what the user who runs this command may see, to whoever
knows the address: keep that to yourself. The server listens on a loopback address only,
until it is interrupted. From another machine use ssh -L PORT:127.0.0.1:PORT, with
--listen 127.0.0.1:PORT here.`,
		Args: maxArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.format == formatCSV {
				return usagef("-o csv: ui prints an address, as text or JSON")
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			if _, err := c.Status(cmd.Context()); err != nil {
				return err
			}
			return a.serveUI(cmd.Context(), c, listen)
		},
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "loopback address and port to listen on; port 0 takes a free one")
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
	token := rand.Text() // 128 bits at least
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
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	url := fmt.Sprintf("http://%s/%s/", l.Addr(), token)
	if a.wantJSON() {
		err = a.printJSON(struct {
			Version int    `json:"version"`
			URL     string `json:"url"`
		}{control.Version, url})
	} else {
		_, err = fmt.Fprintln(a.out, url)
		fmt.Fprintln(a.err, "Open it in a browser of this machine; ctrl-C ends it. Whoever has this address sees what you may see.")
	}
	if err == nil {
		select {
		case <-ctx.Done():
		case err = <-done:
			return fmt.Errorf("the page's server: %w", err)
		}
	}
	cancel()
	err = errors.Join(err, srv.Close())
	if e := <-done; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}

// uiHandler serves the files and the events under /TOKEN/. at is the listener's address:
// a request that names another host comes from a page whose name was bound to this
// address (DNS rebinding).
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
			http.Error(w, "this is "+at+" and no other host", http.StatusMisdirectedRequest)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "the page only reads", http.StatusMethodNotAllowed)
			return
		}
		key, rest, inside := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		if subtle.ConstantTimeCompare([]byte(key), []byte(token)) != 1 {
			http.Error(w, "use the address that exanetctl ui has printed", http.StatusNotFound)
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

// sendEvents sends what the feed has as server-sent events until the reader leaves. One
// that does not read for uiWriteTime is dropped.
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
