/* Memory that the kernel brings in by folios, more than a page at a touch (docs/attach.md 8). */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

#ifndef MADV_POPULATE_WRITE /* glibc 2.35 */
#define MADV_POPULATE_WRITE 23
#endif

enum { PAGE = 4096, MOST = 512 };	/* of a folio, pages */

void *map_folios(size_t size, int fd)
{
	size_t align = (size_t)MOST * PAGE;
	while (align > size)
		align /= 2;
	char *p = mmap(NULL, size + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return p;
	const size_t before = -(uintptr_t)p % align;
	void *at = mmap(p + before, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0);
	if (at == MAP_FAILED) {
		const int error = errno;
		munmap(p, size + align);
		errno = error;
		return at;
	}
	if (before)
		munmap(p, before);
	munmap(p + before + size, align - before);
	return at;
}

int folio_of(void *address, size_t size, int fd)
{
	if (madvise(address, size, MADV_HUGEPAGE))
		return SINGLE_KERNEL;
	const int touched = madvise(address, PAGE, MADV_POPULATE_WRITE);
	const off_t hole = touched ? 0 : lseek(fd, 0, SEEK_HOLE);
	if (madvise(address, size, MADV_REMOVE) || touched)
		return SINGLE_KERNEL;
	int pages = 1;
	while (pages < MOST && 2 * pages * (off_t)PAGE <= hole)
		pages *= 2;
	return pages > 1 ? pages : SINGLE_SETTING;
}

int exanet_folio(exanet *e, const void *p)
{
	static const char *const why[] = {
		[-SINGLE_KERNEL] = "the kernel has none for this memory (CONFIG_TRANSPARENT_HUGEPAGE), or it is locked (mlockall)",
		[-SINGLE_SETTING] = "no folio that the kernel allows fits in this shared memory (exanetctl doctor shows their sizes): those of 64 KiB need Linux 6.11 and a setting, echo advise >/sys/kernel/mm/transparent_hugepage/hugepages-64kB/shmem_enabled",
		[-SINGLE_UFFD] = "method uffd fills single pages: attach with another method",
		[-SINGLE_PRIVATE] = "this process could not create shared memory (ulimit -f, a seccomp filter)",
		[-SINGLE_PFD] = "this pfd does not support folios: use a newer one",
		[-SINGLE_DEVICE] = "the device does not use the page tables of processes",
	};
	UNCANCELLED;
	if (inherited(e))
		return refuse_child(e);
	const int folio = buffer_at(e, p, false).folio;
	if (!folio && e->flags & EXANET_FOLIOS)
		return fail(EINVAL, "no memory of exanet_alloc begins at %p", p);
	return folio >= 0 ? folio + !folio : fail(EOPNOTSUPP, "memory comes in by single pages, not by folios: %s", why[-folio]);
}
