package probe

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf/asm"
)

// maxStack is Linux's limit for the frames of all calls together, each rounded up to frame
// (MAX_BPF_STACK, linux/filter.h; round_up_stack_depth, kernel/bpf/verifier.c: 16 with a JIT,
// 32 without and before 6.8). Since 6.13 some programs have more (private stacks): only older
// kernels would refuse a larger one.
const maxStack, frame = 512, 32

// The frames of each chain of calls fit on any kernel.
func TestStack(t *testing.T) {
	spec, err := loadProbe()
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range spec.Programs {
		depth, calls := map[string]int{}, map[string][]string{}
		fn := ""
		for i, ins := range p.Instructions {
			if s := ins.Symbol(); s != "" {
				fn = s
			}
			used := 0
			switch class := ins.OpCode.Class(); {
			case class.IsStore() && ins.Dst == asm.R10, class.IsLoad() && ins.Src == asm.R10:
				used = -int(ins.Offset)
			case class.IsALU() && ins.OpCode.ALUOp() == asm.Add && ins.OpCode.Source() == asm.ImmSource && i > 0:
				// An address: r = r10; r += -n.
				if before := p.Instructions[i-1]; before.Src == asm.R10 && before.Dst == ins.Dst && before.OpCode.Class().IsALU() {
					used = -int(ins.Constant)
				}
			}
			depth[fn] = max(depth[fn], used)
			if ins.IsFunctionCall() {
				calls[fn] = append(calls[fn], ins.Reference())
			}
		}
		var deepest func(fn string) (int, string)
		deepest = func(fn string) (int, string) {
			most, way := 0, ""
			for _, c := range calls[fn] {
				if n, w := deepest(c); n > most {
					most, way = n, ", "+w
				}
			}
			own := (max(depth[fn], 1) + frame - 1) / frame * frame
			return own + most, fmt.Sprintf("%s %d", fn, own) + way
		}
		n, way := deepest(p.Instructions[0].Symbol())
		t.Logf("%s: %d bytes: %s", name, n, way)
		if n > maxStack {
			t.Errorf("%s needs %d bytes of stack, there are %d: %s", name, n, maxStack, way)
		}
	}
}
