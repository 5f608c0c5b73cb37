#include "textflag.h"

// func load64(p *uint64) uint64
TEXT ·load64(SB), NOSPLIT, $0-16
	MOVD p+0(FP), R0
	LDAR (R0), R1
	MOVD R1, ret+8(FP)
	RET

// func swap64(p *uint64, v uint64) (old uint64)
TEXT ·swap64(SB), NOSPLIT, $0-24
	MOVD p+0(FP), R0
	MOVD v+8(FP), R1
again:
	LDAXR (R0), R2
	STLXR R1, (R0), R3
	CBNZ R3, again
	MOVD R2, old+16(FP)
	RET

// func add64(p *uint64, v uint64) (old uint64)
TEXT ·add64(SB), NOSPLIT, $0-24
	MOVD p+0(FP), R0
	MOVD v+8(FP), R1
again:
	LDAXR (R0), R2
	ADD R1, R2, R3
	STLXR R3, (R0), R4
	CBNZ R4, again
	MOVD R2, old+16(FP)
	RET

// func cas64(p *uint64, expected, v uint64) (old uint64)
TEXT ·cas64(SB), NOSPLIT, $0-32
	MOVD p+0(FP), R0
	MOVD expected+8(FP), R1
	MOVD v+16(FP), R2
again:
	LDAXR (R0), R3
	CMP R1, R3
	BNE done
	STLXR R2, (R0), R4
	CBNZ R4, again
done:
	MOVD R3, old+24(FP)
	RET

// func cas128(p *uint64, e0, e1, v0, v1 uint64) (old0, old1 uint64)
//
// The pair has been read at once only if a store follows that succeeds: another pair is stored as it
// is.
TEXT ·cas128(SB), NOSPLIT, $0-56
	MOVD p+0(FP), R0
	MOVD e0+8(FP), R1
	MOVD e1+16(FP), R2
	MOVD v0+24(FP), R3
	MOVD v1+32(FP), R4
again:
	LDAXP (R0), (R5, R6)
	CMP R1, R5
	BNE other
	CMP R2, R6
	BNE other
	STLXP (R3, R4), (R0), R7
	CBNZ R7, again
	B done
other:
	STLXP (R5, R6), (R0), R7
	CBNZ R7, again
done:
	MOVD R5, old0+40(FP)
	MOVD R6, old1+48(FP)
	RET

// func store256(p, v *[4]uint64)
TEXT ·store256(SB), NOSPLIT, $0-16
	MOVD p+0(FP), R0
	MOVD v+8(FP), R1
	FLDPQ (R1), (F0, F1)
	DMB $11 // ISH
	FSTPQ (F0, F1), (R0)
	DMB $11
	RET
