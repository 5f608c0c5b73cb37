package logs

import (
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/exanet/pfd/internal/spool"
)

// journal creates a socket like journald's.
func journal(t *testing.T, path string) *net.UnixConn {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func datagram(t *testing.T, c *net.UnixConn) string {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1<<16)
	n, err := c.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

// Each record is a datagram of fields as in systemd.io/JOURNAL_NATIVE_PROTOCOL, also if the
// spool joins several. Text from a peer cannot create a field.
func TestJournalEntries(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	c := journal(t, path)
	j, err := Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	file := spool.New(j, 1<<20)
	l := slog.New(New(file, Options{Journal: true, Fields: true, Level: slog.LevelDebug}))
	s := l.With("node", 1, "uid", 1000)
	s.Info("attached", "pdid", 258, "2nd-key", true, "group", slog.GroupValue(slog.Int("a", 1)))
	s.With("slot", 3).Error("failed", "err", errors.New("x\n\nPRIORITY=0\n\nNODE=9"))
	s.With("slot", 4).Debug("two handlers share nothing")
	if err := file.Close(time.Minute); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"PRIORITY=6\nSYSLOG_IDENTIFIER=pfd\nNODE=1\nUID=1000\nPDID=258\nND_KEY=true\nMESSAGE=msg=attached node=1 uid=1000 pdid=258 2nd-key=true group.a=1\n",
		"PRIORITY=3\nSYSLOG_IDENTIFIER=pfd\nNODE=1\nUID=1000\nSLOT=3\n" + `ERR="x\n\nPRIORITY=0\n\nNODE=9"` + "\nMESSAGE=msg=failed node=1 uid=1000 slot=3 " + `err="x\n\nPRIORITY=0\n\nNODE=9"` + "\n",
		"PRIORITY=7\nSYSLOG_IDENTIFIER=pfd\nNODE=1\nUID=1000\nSLOT=4\nMESSAGE=msg=\"two handlers share nothing\" node=1 uid=1000 slot=4\n",
	} {
		if got := datagram(t, c); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
}

// A restarted journal receives the following records.
func TestJournalAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	c := journal(t, path)
	j, err := Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { j.Close() }()
	c.Close()
	if _, err := j.Write([]byte("MESSAGE=lost\n\n")); err == nil {
		t.Error("no error although the journal has ended")
	}
	c = journal(t, path+"2")
	j.path += "2"
	if n, err := j.Write([]byte("MESSAGE=a\n\nMESSAGE=b\n\n")); n != 22 || err != nil {
		t.Fatal(n, err)
	}
	if got := []string{datagram(t, c), datagram(t, c)}; !slices.Equal(got, []string{"MESSAGE=a\n", "MESSAGE=b\n"}) {
		t.Errorf("%q", got)
	}
	if _, err := Dial(filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "the journal") {
		t.Errorf("without a journal: %v", err)
	}
}
