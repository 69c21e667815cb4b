/* ptrace(2) for linux.uml on a CPU with AMX, preloaded: it keeps a program's extended registers in a buffer that is smaller
 * than the host's, and Linux takes only all of them (EFAULT otherwise). The rest is set to what the program has.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

long ptrace(enum __ptrace_request request, ...)
{
	static char registers[1 << 16] __attribute__((aligned(64)));
	struct iovec all = {registers, sizeof registers};
	va_list arguments;
	va_start(arguments, request);
	pid_t pid = va_arg(arguments, pid_t);
	void *address = va_arg(arguments, void *), *data = va_arg(arguments, void *);
	va_end(arguments);

	if (request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER) {
		long word; /* the system call writes it, the function of libc returns it */
		long failed = syscall(SYS_ptrace, request, pid, address, &word);
		return failed ? failed : word;
	}
	if (request == PTRACE_SETREGSET && address == (void *)NT_X86_XSTATE) {
		struct iovec *given = data;
		if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, address, &all) == 0 && given->iov_len < all.iov_len) {
			memcpy(registers, given->iov_base, given->iov_len);
			data = &all;
		}
	}
	return syscall(SYS_ptrace, request, pid, address, data);
}
