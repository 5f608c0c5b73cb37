package device_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/golden"
)

func TestQueueGolden(t *testing.T) {
	events := map[string]device.EventKind{
		"fault": device.EventFault, "bank": device.EventBank, "global": device.EventGlobal, "mail": device.EventMail,
		"done": device.EventDone, "words": device.EventWords, "refused": device.EventRefused, "nop": device.EventNop,
		"error": device.EventError, "overflow": device.EventOverflow, "message": device.EventMessage,
		"want": device.EventWant, "call": device.EventCall,
	}
	commands := map[string]device.CommandKind{
		"send": device.CommandSend, "doorbell": device.CommandDoorbell, "invalidate": device.CommandInvalidate,
		"sync": device.CommandSync, "nop": device.CommandNop, "payload": device.CommandPayload,
		"answer": device.CommandAnswer,
	}
	for _, c := range golden.Read(t, "testdata/queue.txt") {
		t.Run(c.Name, func(t *testing.T) {
			u := func(key string) uint64 {
				if !c.Has(key) {
					return 0
				}
				return c.Uint(t, key)
			}
			b := func(key string) bool { return c.Has(key) && c.Bool(t, key) }
			var entry device.QueueEntry
			copy(entry[:], c.Words(t, "words"))
			name := strings.Fields(c.Name)
			if name[0] == "event" {
				want := device.Event{
					Kind: events[name[1]], Commands: uint16(u("commands")), TX: b("tx"), Lost: b("lost"), Index: uint8(u("index")),
					Channel: uint8(u("channel")), Code: uint8(u("code")), Ext: uint32(u("ext")), Status: uint32(u("status")),
					Syndrome: uint32(u("syndrome")), Address: u("address"), Cookie: u("cookie"), Generation: device.Generation(u("generation")),
				}
				if c.Has("payload") {
					copy(want.Message[:], c.Words(t, "payload"))
				}
				if c.Has("words32") {
					for i, s := range strings.Fields(c.Text(t, "words32")) {
						want.Words[i] = number(t, s)
					}
				}
				if got := want.Encode(); got != entry {
					t.Errorf("encoded %x, want %x", got, entry)
				}
				if got, err := device.DecodeEvent(&entry); err != nil || got != want {
					t.Errorf("decoded %+v, %v; want %+v", got, err, want)
				}
			} else {
				want := device.Command{
					Kind: commands[name[1]], Index: uint8(u("index")), Channel: uint8(u("channel")), Count: uint8(u("count")),
					Number: uint16(u("number")), Destination: u("destination"), Page: u("page"), Pages: u("pages"), Address: u("address"), Value: u("value"),
				}
				if c.Has("payload") {
					copy(want.Words[:], c.Words(t, "payload"))
				}
				if got := want.Encode(); got != entry {
					t.Errorf("encoded %x, want %x", got, entry)
				}
				if got, err := device.DecodeCommand(&entry); err != nil || got != want {
					t.Errorf("decoded %+v, %v; want %+v", got, err, want)
				}
			}
			var bytes [device.QueueEntrySize]byte
			entry.Put(bytes[:])
			if device.QueueEntryOf(bytes[:]) != entry || bytes[1] != byte(entry[0]>>8) || bytes[8] != byte(entry[1]) {
				t.Errorf("in memory % x", bytes)
			}
			c.Done(t)
		})
	}
}

func number(t *testing.T, s string) uint32 {
	t.Helper()
	v := uint32(0)
	digits, hex := strings.CutPrefix(s, "0x")
	for _, c := range digits {
		d := uint32(strings.IndexRune("0123456789abcdef", c))
		if hex {
			v = v<<4 | d
		} else {
			v = v*10 + d
		}
	}
	return v
}

// Fields out of range, and unknown kinds.
func TestQueueBadEntries(t *testing.T) {
	for name, w := range map[string]uint64{
		"unknown kind": 0, "kind 14": 14 << 8, "message in mailbox 64": 11<<8 | 64<<32, "bank 16": 2<<8 | 16<<32, "mailbox 64": 4<<8 | 64<<32, "slot 16": 5<<8 | 16<<32,
		"channel 64": 5<<8 | 64<<40, "slot 255": 6<<8 | 255<<32, "interface 64": 7<<8 | 64<<32,
	} {
		if e, err := device.DecodeEvent(&device.QueueEntry{w}); !errors.Is(err, device.ErrQueueEntry) || e != (device.Event{}) {
			t.Errorf("event, %s: %+v, %v", name, e, err)
		}
	}
	for name, q := range map[string]device.QueueEntry{
		"unknown kind": {}, "kind 8": {8 << 8}, "interface 64": {1<<8 | 64<<32 | 1<<48}, "no words": {1 << 8}, "9 words": {1<<8 | 9<<48}, "words of interface 64": {6<<8 | 64<<32},
		"slot 16": {2<<8 | 16<<32}, "channel 64": {2<<8 | 64<<40}, "bank 16": {3<<8 | 16<<32}, "bank 254": {4<<8 | 254<<32},
		"unaligned word": {4 << 8, 4},
	} {
		if c, err := device.DecodeCommand(&q); !errors.Is(err, device.ErrQueueEntry) || c != (device.Command{}) {
			t.Errorf("command, %s: %+v, %v", name, c, err)
		}
	}
}

// FuzzQueueEntry: a decoded entry encodes to an entry that decodes to the same.
func FuzzQueueEntry(f *testing.F) {
	f.Add(uint64(0x212340101), uint64(1), uint64(2), uint64(3))
	f.Add(uint64(0x2010500000101), uint64(1), uint64(2), uint64(3))
	f.Fuzz(func(t *testing.T, w0, w1, w2, w3 uint64) {
		q := device.QueueEntry{w0, w1, w2, w3, w1, w2, w3, w0}
		if e, err := device.DecodeEvent(&q); err == nil {
			again := e.Encode()
			if got, err := device.DecodeEvent(&again); err != nil || got != e || again[0]&device.QueuePhase != 0 {
				t.Errorf("event %+v is decoded as %+v, %v", e, got, err)
			}
		}
		if c, err := device.DecodeCommand(&q); err == nil {
			again := c.Encode()
			if got, err := device.DecodeCommand(&again); err != nil || got != c || again[0]&device.QueuePhase != 0 {
				t.Errorf("command %+v is decoded as %+v, %v", c, got, err)
			}
		}
	})
}
