#include "textflag.h"

// func load64(p *uint64) uint64
TEXT ·load64(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), R8
	MOVQ (R8), AX
	MOVQ AX, ret+8(FP)
	RET

// func swap64(p *uint64, v uint64) (old uint64)
TEXT ·swap64(SB), NOSPLIT, $0-24
	MOVQ p+0(FP), R8
	MOVQ v+8(FP), AX
	XCHGQ AX, (R8)
	MOVQ AX, old+16(FP)
	RET

// func add64(p *uint64, v uint64) (old uint64)
TEXT ·add64(SB), NOSPLIT, $0-24
	MOVQ p+0(FP), R8
	MOVQ v+8(FP), AX
	LOCK
	XADDQ AX, (R8)
	MOVQ AX, old+16(FP)
	RET

// func cas64(p *uint64, expected, v uint64) (old uint64)
TEXT ·cas64(SB), NOSPLIT, $0-32
	MOVQ p+0(FP), R8
	MOVQ expected+8(FP), AX
	MOVQ v+16(FP), CX
	LOCK
	CMPXCHGQ CX, (R8)
	MOVQ AX, old+24(FP)
	RET

// func cas128(p *uint64, e0, e1, v0, v1 uint64) (old0, old1 uint64)
TEXT ·cas128(SB), NOSPLIT, $0-56
	MOVQ p+0(FP), R8
	MOVQ e0+8(FP), AX
	MOVQ e1+16(FP), DX
	MOVQ v0+24(FP), BX
	MOVQ v1+32(FP), CX
	LOCK
	CMPXCHG16B (R8)
	MOVQ AX, old0+40(FP)
	MOVQ DX, old1+48(FP)
	RET

// func store256(p, v *[4]uint64)
TEXT ·store256(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), R8
	MOVQ v+8(FP), R9
	VMOVDQU (R9), Y0
	VMOVDQU Y0, (R8)
	VZEROUPPER
	MFENCE
	RET
