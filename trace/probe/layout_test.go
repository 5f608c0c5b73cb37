package probe

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/exanet/pfd/trace"
)

func types(t *testing.T) *btf.Spec {
	t.Helper()
	spec, err := loadProbe()
	if err != nil {
		t.Fatal(err)
	}
	return spec.Types
}

// pfd's record has the same fields as the programs' record.
func TestRecordLayout(t *testing.T) {
	var c *btf.Struct
	if err := types(t).TypeByName("record", &c); err != nil {
		t.Fatal(err)
	}
	g := reflect.TypeFor[trace.Record]()
	if g.Size() != trace.Size || c.Size != trace.Size {
		t.Fatalf("trace.Record has %d bytes, struct record %d, want %d", g.Size(), c.Size, trace.Size)
	}
	fields := map[string]reflect.StructField{}
	for f := range g.Fields() {
		fields[strings.ToLower(f.Name)] = f
	}
	for _, m := range c.Members {
		name := strings.ReplaceAll(m.Name, "_", "")
		if strings.HasPrefix(name, "reserved") {
			continue
		}
		f, ok := fields[name]
		size, err := btf.Sizeof(m.Type)
		if err != nil {
			t.Fatal(err)
		}
		if !ok || uint32(f.Offset) != m.Offset.Bytes() || int(f.Type.Size()) != size {
			t.Errorf("%s: at %d with %d bytes in C, %d with %d in Go", m.Name, m.Offset.Bytes(), size, f.Offset, f.Type.Size())
		}
		delete(fields, name)
	}
	delete(fields, "_")
	if len(fields) != 0 {
		t.Errorf("only in Go: %v", fields)
	}
}

// The printed names are those of the enumerations.
func TestNames(t *testing.T) {
	for enum, names := range map[string][]string{
		"stage": stageNames[:], "method": methodNames[:], "kind": kindNames[:], "counter": counterNames[:],
	} {
		var e *btf.Enum
		if err := types(t).TypeByName(enum, &e); err != nil {
			t.Fatal(err)
		}
		for _, v := range e.Values {
			if strings.ToUpper(v.Name) == v.Name {
				if int(v.Value) != len(names) {
					t.Errorf("enum %s has %d values, the table %d", enum, v.Value, len(names))
				}
			} else if int(v.Value) >= len(names) || names[v.Value] != v.Name {
				t.Errorf("enum %s: %s is %d, the table has %q", enum, v.Name, v.Value, names)
			}
		}
	}
}

// The committed files are what generate.sh makes of the sources.
func TestGenerated(t *testing.T) {
	out, err := exec.Command("clang", "--version").Output()
	if err != nil {
		t.Skip("clang is not installed: apt-get install clang libbpf-dev")
	}
	dir := t.TempDir()
	if out, err := exec.Command("sh", "generate.sh", dir).CombinedOutput(); err != nil {
		t.Skipf("%v: %s", err, out)
	}
	for _, name := range []string{"probe_bpfel.go", "probe_x86_bpfel.o", "probe_arm64_bpfel.o"} {
		if strings.HasSuffix(name, ".o") && !bytes.Contains(out, []byte("version 14.")) {
			continue // another compiler generates other code
		}
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s does not match its sources: run make generate", name)
		}
	}
}

// bucketOf equals the function bucket of probe.c.
func bucketOf(ns uint64) int {
	if ns < 8 {
		return int(ns)
	}
	e := bits.Len64(ns) - 1
	if e > 36 {
		return len(probeLatency{}.Buckets) - 1
	}
	return (e-2)*8 + int(ns>>(e-3)&7)
}

// Each value lies in its bucket, whose width is at most an eighth of the value.
func TestBuckets(t *testing.T) {
	for _, ns := range []uint64{0, 1, 7, 8, 9, 15, 16, 17, 1000, 12345, 1 << 20, 1<<36 - 1, 1 << 36, 1<<37 - 1} {
		from, to := bucketRange(bucketOf(ns))
		if ns < from || ns >= to || (ns >= 8 && 8*(to-from) > ns) {
			t.Errorf("%d: bucket [%d, %d)", ns, from, to)
		}
	}
	if b := bucketOf(1 << 60); b != len(probeLatency{}.Buckets)-1 {
		t.Errorf("2^60: bucket %d", b)
	}
}

func TestPercentile(t *testing.T) {
	var l probeLatency
	if p := percentile(&l, 50); p != 0 {
		t.Errorf("of nothing: %d", p)
	}
	for ns := uint64(1000); ns <= 100_000; ns += 1000 {
		l.Buckets[bucketOf(ns)]++
		l.Count++
		l.MaxNs = ns
	}
	for q, want := range map[uint64]float64{50: 50e3, 90: 90e3, 99: 99e3, 100: 100e3} {
		if got := float64(percentile(&l, q)); got < want*.93 || got > want*1.07 {
			t.Errorf("%v: %v, want %v within 7 %%", q, got, want)
		}
	}
}

// FuzzFind: no file makes Find panic or return a place outside the file.
func FuzzFind(f *testing.F) {
	f.Add([]byte("\x7fELF\x02\x01\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Find(bytes.NewReader(b))
		if err == nil && p.Semaphore+16 > uint64(len(b)) {
			t.Errorf("%+v in %d bytes", p, len(b))
		}
	})
}

// FuzzDecode: no code makes the decoders panic, and code without the marks is never accepted as
// the point.
func FuzzDecode(f *testing.F) {
	f.Add(append([]byte{0x48, 0x8d, 0x05, 0, 0, 0, 0, 0xba, 1, 0, 0x58, 0x45, 0x48, 0x8b, 0x7c, 0x24, 8, 0x48, 0x8b, 0x74, 0x24, 16}, nopsX86...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := decodeX86(0x1000, b); err == nil && p.nops[Nop1] != 0x1000+22 {
			t.Errorf("%+v", p)
		}
		if p, err := decodeARM(0x1000, b); err == nil && p.nops[Nop4] != 0x1000+24 {
			t.Errorf("%+v", p)
		}
		if e, err := decodeEvent(b); err == nil && len(b) < binary.Size(probeFaultEvent{}) {
			t.Errorf("%+v", e)
		}
	})
}
