package smmu_test

import (
	"fmt"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/smmu"
)

// An access of two pages, the second of which is absent: FAR has its address.
func Example() {
	var counts smmu.Counts
	s := smmu.New(&counts)
	s.StoreGlobal(device.SCR0, 0, device.SCR0GFRE|device.SCR0USFCFG)
	s.StoreGlobal(device.SMR, 0, device.SMRValid|7) // stream 7 is translated by bank 3
	s.StoreGlobal(device.S2CR, 0, 3)
	s.StoreBank(device.SCTLR, 3, device.SCTLRDriver)
	bank, verdict := s.Begin(7, 0x7f0000001000)
	if verdict != smmu.Translate {
		fmt.Println("aborted")
		return
	}
	r := s.Finish(smmu.Access{Bank: bank, Stream: 7, VA: 0x7f0000001000, Pages: 2, Write: true}, smmu.Walk{Absent: 0b10})
	s.End(bank)
	fmt.Printf("aborted %b, FAR %#x\n", r.Aborted, s.LoadBank(device.FAR, bank))
	// Output: aborted 10, FAR 0x7f0000002000
}
