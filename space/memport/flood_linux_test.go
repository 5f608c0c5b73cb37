package memport

import (
	"errors"
	"os"
	"testing"
	"time"
)

// A helper that sends unasked messages is read slowly, and its answers still count.
func TestFlood(t *testing.T) {
	f := newFake(t)
	if err := f.socket.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	said := 0
	var err error
	for ; err == nil && said < 10000; said++ {
		_, err = f.socket.Write([]byte{messageOK})
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d messages that nobody asked for are read within a second: %v", said, err)
	}
	asked := make(chan error, 1)
	go func() { _, err := f.tell(messageUnregister, 0, 4096); asked <- err }()
	if err := f.socket.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	var b [messageSize]byte
	if _, err := f.socket.Read(b[:]); err != nil {
		t.Fatal(err)
	}
	f.say(t, messageOK)
	if err := <-asked; err != nil {
		t.Errorf("an answer after a flood: %v", err)
	}
}
