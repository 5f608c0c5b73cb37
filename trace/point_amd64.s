#include "textflag.h"

// func point(records *Record, n int)
//
// trace/probe decodes this: the LEA names the semaphore, the MOVL the record's
// version, and behind them is a NOP for each kind of kernel. One byte: emulated
// everywhere. Five: Linux 6.18 and later put a call there. Ten: the same from 7.2.
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
