#include "textflag.h"

// System calls of arm64 (asm-generic/unistd.h), operations of fcntl(2) and prctl(2).
#define SYS_fcntl 25
#define SYS_exit 93
#define SYS_prctl 167
#define SYS_clone 220
#define SYS_close_range 436
#define F_SETLKW 7
#define PR_SET_NAME 15
#define PR_SET_SECCOMP 22
#define PR_SET_NO_NEW_PRIVS 38
#define PR_SET_PTRACER 0x59616d61

// func spawn(flags, stack uintptr, pidfd unsafe.Pointer, hold uintptr, page unsafe.Pointer) int
TEXT ·spawn(SB), NOSPLIT, $0-48
	MOVD flags+0(FP), R0
	MOVD stack+8(FP), R1
	MOVD pidfd+16(FP), R2
	MOVD hold+24(FP), R19
	MOVD page+32(FP), R20
	MOVD ZR, R3
	MOVD ZR, R4
	MOVD $SYS_clone, R8
	SVC
	CBZ  R0, child
	MOVD R0, ret+40(FP)
	RET

child:
	// Below and above hold. Below descriptor 0 there is nothing.
	CBZ  R19, above
	MOVD ZR, R0
	SUB  $1, R19, R1
	MOVD ZR, R2
	MOVD $SYS_close_range, R8
	SVC
	CBNZ R0, fail
above:
	ADD  $1, R19, R0
	MOVD $0xffffffff, R1
	MOVD ZR, R2
	MOVD $SYS_close_range, R8
	SVC
	CBNZ R0, fail

	MOVD $PR_SET_NAME, R0
	MOVD R20, R1
	MOVD $SYS_prctl, R8
	SVC
	// EINVAL without Yama.
	MOVD $PR_SET_PTRACER, R0
	MOVD 512(R20), R1
	MOVD $SYS_prctl, R8
	SVC
	MOVD $PR_SET_NO_NEW_PRIVS, R0
	MOVD $1, R1
	MOVD ZR, R2
	MOVD ZR, R3
	MOVD ZR, R4
	MOVD $SYS_prctl, R8
	SVC
	CBNZ R0, fail
	MOVD $PR_SET_SECCOMP, R0
	MOVD $2, R1
	ADD  $16, R20, R2
	MOVD $SYS_prctl, R8
	SVC
	CBNZ R0, fail

	MOVD $1, R0
	ADD  $520, R20, R1
	STLRW R0, (R1)
	MOVD R19, R0
	MOVD $F_SETLKW, R1
	ADD  $1024, R20, R2
	MOVD $SYS_fcntl, R8
	SVC
	MOVD ZR, R0
	MOVD $SYS_exit, R8
	SVC
	BRK

fail:
	NEG  R0, R0
	MOVD $SYS_exit, R8
	SVC
	BRK
