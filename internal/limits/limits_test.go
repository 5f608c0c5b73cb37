package limits

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestExplain(t *testing.T) {
	for errno, want := range map[unix.Errno]string{
		unix.EMFILE: "ulimit -n", unix.ENFILE: "fs.file-max", unix.EFBIG: "ulimit -f", unix.ENOMEM: "out of memory", unix.EPERM: "",
		unix.ETOOMANYREFS: "ulimit -n",
	} {
		err := Explain(os.NewSyscallError("call", errno))
		if !errors.Is(err, errno) || !strings.Contains(err.Error(), want) || (want == "") != (Remedy(errno) == "") {
			t.Errorf("%v: %v", errno, err)
		}
	}
	if err := Explain(unix.EMFILE); Explain(err).Error() != err.Error() {
		t.Errorf("twice: %v", Explain(err))
	}
	if err := Room(1); err != nil {
		t.Error(err)
	}
	if err := Room(1 << 40); !errors.Is(err, unix.EMFILE) || !strings.Contains(err.Error(), "ulimit -n") {
		t.Errorf("room for all: %v", err)
	}
	if Explain(nil) != nil {
		t.Error("no error has a remedy")
	}
}
