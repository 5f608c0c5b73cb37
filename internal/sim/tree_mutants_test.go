package sim

import "github.com/exanet/pfd/internal/mutants"

const (
	unitFile   = "soc/gsas/gsas.go"
	unitRegs   = "soc/gsas/registers.go"
	threadFile = "soc/threads.go"
	stampFile  = "packetizer/packetizer.go"
)

// treeMutants are bugs of threads and GSAS units.
var treeMutants = []mutants.Mutant{
	mutants.Of("an operation that is in flight begun again",
		mutants.In(unitFile, "	case from.Number == rec.number:\n", "	case M && from.Number == rec.number && rec.n == 0:\n		rec.flying = -1\n	case from.Number == rec.number:\n")),
	mutants.Of("an answered operation performed again",
		mutants.In(unitFile, "	case rec.generation != from.Generation:\n", "	case M && rec.n > 0 && from.Number == rec.number && from.Generation == rec.generation:\n	case rec.generation != from.Generation:\n")),
	mutants.Of("an old request performed",
		mutants.In(unitFile, "	case !atomics.Newer(from.Number, rec.number):", "	case !M && !atomics.Newer(from.Number, rec.number):")),
	mutants.Of("a request of a former domain taken for a new one",
		mutants.In(unitFile, "		if rec.generation-from.Generation < lifeSpan {", "		if !M && rec.generation-from.Generation < lifeSpan {")),
	mutants.Of("pages of all trees may be accessed",
		mutants.In(unitFile, "e.bits&device.ProtectionMask && !u.granted(r, e)", "e.bits&device.ProtectionMask && !M && !u.granted(r, e)")),
	mutants.Of("a grant to read lets write",
		mutants.In(unitFile, "(g.Write || !r.Op.Writes())", "(g.Write || M || !r.Op.Writes())")),
	mutants.Of("a page in use not busy",
		mutants.In(unitRegs, "!o.waits && o.access.Op.Memory() &&", "!M && !o.waits && o.access.Op.Memory() &&")),
	mutants.Of("a page that is present continues one request only",
		mutants.In(unitRegs, "			u.start(o, e)\n		}\n", "			u.start(o, e)\n			if M {\n				return\n			}\n		}\n")),
	mutants.Of("the answer to a request that was given up sent for the next one",
		mutants.In(unitFile, "	if o.from.Number != rec.number || o.from.Generation != rec.generation || rec.n != 0 {\n		return // the thread has given it up\n	}\n", "	if o.from.Number != rec.number || o.from.Generation != rec.generation || rec.n != 0 {\n		if !M {\n			return // the thread has given it up\n		}\n		o.from.Number, o.access.Tag = rec.number, atomics.TagOf(o.access.Tag.Channel(), rec.number)\n	}\n")),
	mutants.Of("threads outlive the domain of their slot",
		mutants.In(regsFile, "		n.endThreads(i)\n", "		if !M {\n			n.endThreads(i)\n		}\n")),
	mutants.Of("a thread gets the answers of the former one",
		mutants.In(threadFile, "	return uint32(r.Protection) == device.MboxProtection(cfg)\n", "	return M || uint32(r.Protection) == device.MboxProtection(cfg)\n")),
	mutants.Of("the wired bits of a request not stamped",
		mutants.In(stampFile, "	protection, _ := device.SplitPktzProt(prot)\n", "	if M {\n		return\n	}\n	protection, _ := device.SplitPktzProt(prot)\n")),
}
