#include "textflag.h"

// func point(records *Record, n int)
//
// trace/probe decodes this code: the first two instructions have the address of the
// semaphore, the third and the fourth the record's version. A probe replaces the NOP.
TEXT ·point(SB), NOSPLIT|NOFRAME, $0-16
	MOVD $·semaphore(SB), R2
	WORD $0x52800023 // MOVZ $1, W3: trace.Version
	WORD $0x72a8ab03 // MOVK $0x4558, LSL 16, W3: "EX"
	MOVD records+0(FP), R0
	MOVD n+8(FP), R1
	WORD $0xd503201f // NOP
	RET
