#include "textflag.h"

// System calls of x86-64 (asm/unistd_64.h), operations of fcntl(2) and prctl(2).
#define SYS_clone 56
#define SYS_exit 60
#define SYS_fcntl 72
#define SYS_prctl 157
#define SYS_close_range 436
#define F_SETLKW 7
#define PR_SET_NAME 15
#define PR_SET_SECCOMP 22
#define PR_SET_NO_NEW_PRIVS 38
#define PR_SET_PTRACER 0x59616d61

// func spawn(flags, stack uintptr, pidfd unsafe.Pointer, hold uintptr, page unsafe.Pointer) int
TEXT ·spawn(SB), NOSPLIT, $0-48
	MOVQ flags+0(FP), DI
	MOVQ stack+8(FP), SI
	MOVQ pidfd+16(FP), DX
	MOVQ hold+24(FP), R12
	MOVQ page+32(FP), R13
	XORL R10, R10
	XORL R8, R8
	MOVL $SYS_clone, AX
	SYSCALL
	TESTQ AX, AX
	JEQ  child
	MOVQ AX, ret+40(FP)
	RET

child:
	// Below and above hold. Below descriptor 0 there is nothing.
	TESTQ R12, R12
	JEQ  above
	XORL DI, DI
	MOVQ R12, SI
	DECQ SI
	XORL DX, DX
	MOVL $SYS_close_range, AX
	SYSCALL
	TESTQ AX, AX
	JNE  fail
above:
	MOVQ R12, DI
	INCQ DI
	MOVL $0xffffffff, SI
	XORL DX, DX
	MOVL $SYS_close_range, AX
	SYSCALL
	TESTQ AX, AX
	JNE  fail

	MOVL $PR_SET_NAME, DI
	MOVQ R13, SI
	MOVL $SYS_prctl, AX
	SYSCALL
	// EINVAL without Yama.
	MOVL $PR_SET_PTRACER, DI
	MOVQ 512(R13), SI
	MOVL $SYS_prctl, AX
	SYSCALL
	MOVL $PR_SET_NO_NEW_PRIVS, DI
	MOVL $1, SI
	XORL DX, DX
	XORL R10, R10
	XORL R8, R8
	MOVL $SYS_prctl, AX
	SYSCALL
	TESTQ AX, AX
	JNE  fail
	MOVL $PR_SET_SECCOMP, DI
	MOVL $2, SI
	LEAQ 16(R13), DX
	MOVL $SYS_prctl, AX
	SYSCALL
	TESTQ AX, AX
	JNE  fail

	MOVL $1, AX
	XCHGL AX, 520(R13)
	MOVQ R12, DI
	MOVL $F_SETLKW, SI
	LEAQ 1024(R13), DX
	MOVL $SYS_fcntl, AX
	SYSCALL
	XORL DI, DI
	MOVL $SYS_exit, AX
	SYSCALL
	INT $3

fail:
	NEGQ AX
	MOVQ AX, DI
	MOVL $SYS_exit, AX
	SYSCALL
	INT $3
