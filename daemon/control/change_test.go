package control

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
)

func TestChanges(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.Method + " " + r.URL.RequestURI() {
		case "POST /v1/domains/grant?node=1&pdid=258&slot=2":
			fmt.Fprint(w, `{"version":1,"domain":{"slot":2,"peers":[258]}}`)
		case "POST /v1/domains/kick?node=0&slot=15":
			fmt.Fprint(w, `{"version":1,"domain":{"slot":15},"ended":true}`)
		default:
			t.Errorf("asked for %s %s", r.Method, r.URL.RequestURI())
		}
	})
	ctx := context.Background()
	if r, err := c.Grant(ctx, 1, 2, 258); err != nil || r.Domain.Slot != 2 || len(r.Domain.Peers) != 1 || r.Ended {
		t.Errorf("Grant = %+v, %v", r, err)
	}
	if r, err := c.Kick(ctx, 0, 15); err != nil || r.Domain.Slot != 15 || !r.Ended {
		t.Errorf("Kick = %+v, %v", r, err)
	}
}

func TestMonitorFaults(t *testing.T) {
	lines := "{\"version\":1}\n{\"version\":1,\"fault\":{\"page\":\"0x1000\"}}\n{\"version\":1,\"lost\":7}\n"
	c := serve(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, lines) })
	ctx := context.Background()
	var got []FaultEvent
	err := c.MonitorFaults(ctx, AllNodes, func(e FaultEvent) error { got = append(got, e); return nil })
	if !errors.Is(err, ErrEnded) || len(got) != 3 || got[0].Fault != nil || got[1].Fault == nil || got[1].Fault.Page != 0x1000 || got[2].Lost != 7 {
		t.Errorf("%+v, %v", got, err)
	}
	stop := errors.New("enough")
	if err := c.MonitorFaults(ctx, AllNodes, func(FaultEvent) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("stopped with %v", err)
	}
	lines = "{\"version\":2}\n"
	if err := c.MonitorFaults(ctx, AllNodes, func(FaultEvent) error { return nil }); !errors.Is(err, ErrVersion) {
		t.Errorf("another version: %v", err)
	}
}

// A monitor ends with its context's error.
func TestMonitorIsLeft(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, `{"version":1}`)
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
		<-r.Context().Done()
	})
	err := c.MonitorFaults(ctx, AllNodes, func(FaultEvent) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}
