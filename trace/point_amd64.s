#include "textflag.h"

// func point(records *Record, n int)
//
// trace/probe decodes this code: the LEA has the address of the semaphore, the MOVL the
// record's version. A NOP for each kind of kernel follows. Every kernel emulates the one of
// one byte; Linux 6.18 and later replace the one of five bytes by a call; 7.2 and later that
// of ten.
TEXT ·point(SB), NOSPLIT|NOFRAME, $0-16
	LEAQ ·semaphore(SB), AX
	MOVL $0x45580001, DX // "EX", trace.Version
	MOVQ records+0(FP), DI
	MOVQ n+8(FP), SI
	BYTE $0x90
	BYTE $0x0f; BYTE $0x1f; BYTE $0x44; BYTE $0x00; BYTE $0x00
	BYTE $0x66; BYTE $0x2e; BYTE $0x0f; BYTE $0x1f; BYTE $0x84
	BYTE $0x00; BYTE $0x00; BYTE $0x00; BYTE $0x00; BYTE $0x00
	RET
