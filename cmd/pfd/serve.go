package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/internal/discard"
	"github.com/exanet/pfd/internal/logs"
	"github.com/exanet/pfd/internal/spool"
)

const (
	// logRoom is how many bytes of the log are buffered for a slow reader; defined by this
	// project.
	logRoom = 1 << 20
	// logTime limits the wait for the log's last lines; defined by this project.
	logTime = time.Second
)

// serve runs the daemon until ctx ends.
func serve(ctx context.Context, o *options, stderr io.Writer) error {
	// pfd must not end when the reader of its log does.
	signal.Ignore(syscall.SIGPIPE)
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)

	f, ok := stderr.(*os.File)
	journal := ok && logs.OnJournal(f, os.Getenv)
	entries := journal
	if journal {
		// Without the journal's socket the lines go to standard error.
		if j, err := logs.Dial(logs.JournalSocket); err != nil {
			entries = false
		} else {
			defer j.Close()
			stderr = j
		}
	}
	file := spool.New(stderr, logRoom)
	// The metrics count unwritten lines; an error here cannot be reported anywhere.
	defer file.Close(logTime)
	level := new(slog.LevelVar)
	level.Set(o.LogLevel)
	limit := logs.New(file, logs.Options{Level: level, Journal: journal, Fields: entries})
	cfg := o.Config
	cfg.Log, cfg.Level, cfg.LogLimit, cfg.LogFile = slog.New(limit), level, limit, file

	detach, err := traceSelf(&cfg)
	if err != nil {
		return err
	}
	defer detach()
	m, err := daemon.Open(ctx, cfg)
	if errors.Is(err, context.Canceled) {
		cfg.Log.Info("stopped before the device was available")
		return nil
	}
	if err != nil {
		return err
	}
	if m.Features().GSAS != nil {
		p, err := discard.Start("/proc/self/exe")
		if err != nil {
			return err
		}
		defer p.Close()
		cfg.Discard = p.Punch
	}
	d, err := daemon.New(cfg, m)
	if err != nil {
		return err
	}
	shutIn(&cfg, o.file, cfg.Groups)
	stop, stopReloading := context.WithCancel(ctx)
	reloading := make(chan struct{})
	go func() {
		defer close(reloading)
		for {
			select {
			case <-hup:
				reload(stop, d, o, cfg.Log)
			case <-stop.Done():
				return
			}
		}
	}()
	err = d.Run(ctx)
	stopReloading()
	<-reloading
	return err
}

// reload handles SIGHUP: it logs which settings it applied and which it could not.
func reload(ctx context.Context, d *daemon.Daemon, o *options, log *slog.Logger) {
	r, err := d.Reload(ctx, o.again)
	if err != nil {
		log.Error("configuration not reloaded: the old one stays in effect", "err", err)
		return
	}
	if len(r.Restart) > 0 {
		log.Warn("settings that need a restart of pfd", "keys", r.Restart)
	}
	log.Info("configuration reloaded", "changed", r.Changed)
}
