/* SPDX-License-Identifier: MIT */
/*
 * Device memory is host memory. Memory that peers may map is a memfd, so that descriptors travel as for a GPU. Other
 * memory comes from the heap, where AddressSanitizer watches its ends.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/fd.h"
#include "base/rlimits.h"
#include "device/sim/sim.h"
#include "device/sim/hooks.h"

/* A peer that shrank the memory would kill this process with SIGBUS. */
enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

int sim_share_alloc(int device, size_t bytes, struct shunt_gpu_mem *mem_p)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), rounded = (bytes + page - 1) / page * page;
	char name[32];
	void *ptr;
	int fd, err;

	if (!sim_device_ok(device) || !bytes || rounded < bytes)
		return -EINVAL;
	snprintf(name, sizeof(name), "shunt-sim-%d", device);
	fd = SHUNT_FD(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
	if (fd < 0) {
		err = -errno;
		shunt_error("sim: memfd_create: %s", shunt_error_text(-errno).s);
		return err;
	}
	if (ftruncate(fd, (off_t)rounded) || fcntl(fd, F_ADD_SEALS, SEALS)) {
		err = -errno;
		shunt_error("sim: cannot size a memfd of %zu bytes: %m", rounded);
		goto err_close;
	}
	ptr = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (ptr == MAP_FAILED) {
		err = -errno;
		shunt_error("sim: cannot map %zu bytes: %m", rounded);
		goto err_close;
	}
	*mem_p = { ptr, rounded, device, fd, 0, false };
	return 0;

err_close:
	shunt_close_fd(&fd);
	return err;
}

int sim_share_map(int device, int fd, size_t bytes, struct shunt_gpu_mem *mem_p)
{
	struct stat st;
	void *ptr;
	int err, seals;

	if (!sim_device_ok(device) || !bytes)
		return -EINVAL;
	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &st) || (uint64_t)st.st_size != bytes) {
		shunt_error("sim: descriptor %d is not %zu bytes of a peer's memory", fd, bytes);
		return -EINVAL;
	}
	ptr = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (ptr == MAP_FAILED) {
		err = -errno;
		shunt_error("sim: cannot map %zu bytes of a peer: %m", bytes);
		return err;
	}
	*mem_p = { ptr, bytes, device, -1, 0, false };
	return 0; /* cppcheck-suppress memleak; *mem_p has it */
}

int sim_share_borrow(int device, void *ptr, size_t bytes, struct shunt_gpu_mem *mem_p)
{
	if (!sim_device_ok(device) || !ptr || !bytes)
		return -EINVAL;
	*mem_p = { ptr, bytes, device, -1, 0, true };
	return 0;
}

/*
 * Memory of mem_alloc_shared, with its descriptor. Aliases in this process use the same address, so that TSan sees
 * all accesses.
 */
struct shared_alloc {
	struct shared_alloc *next;
	unsigned users; /* the owner and aliases */
	bool freed;     /* the owner has freed it */
	struct shunt_gpu_mem mem;
};
static struct sim_lock shared_allocs_lock;
static struct shared_alloc *shared_allocs;

void sim_mem_forget(void) { shared_allocs_lock = {}; }

/* With the lock held. The link to the allocation that contains ptr, or to NULL. */
static struct shared_alloc **shared_find(const void *ptr)
{
	struct shared_alloc **at = &shared_allocs;

	while (*at && ((*at)->freed || (uintptr_t)ptr - (uintptr_t)(*at)->mem.ptr >= (*at)->mem.bytes))
		at = &(*at)->next;
	return at;
}

static void shared_put(struct shared_alloc *s)
{
	struct shared_alloc **at = &shared_allocs;
	bool last;

	sim_lock(&shared_allocs_lock);
	last = !--s->users;
	if (last) {
		while (*at != s)
			at = &(*at)->next;
		*at = s->next;
	}
	sim_unlock(&shared_allocs_lock);
	if (!last)
		return;
	munmap(s->mem.ptr, s->mem.bytes);
	shunt_close_fd(&s->mem.fd);
	sim_delete(s);
}

int sim_share_alias(int device, void *ptr, size_t bytes, struct shunt_gpu_mem *mem_p)
{
	struct shared_alloc *s;

	if (!sim_device_ok(device))
		return -EINVAL;
	sim_lock(&shared_allocs_lock);
	s = *shared_find(ptr);
	if (s && (s->mem.ptr != ptr || s->mem.bytes != bytes))
		s = nullptr;
	if (s)
		s->users++;
	sim_unlock(&shared_allocs_lock);
	if (!s) {
		shunt_error("sim: %zu bytes at %p are no memory to be shared", bytes, ptr);
		return -EINVAL;
	}
	*mem_p = { ptr, bytes, device, -1, (uintptr_t)s, true };
	return 0;
}

static int free_blocks;

void shunt_sim_set_free_blocks(int waits) { __atomic_store_n(&free_blocks, waits, __ATOMIC_RELAXED); }

void sim_share_free(struct shunt_gpu_mem *mem)
{
	if (mem->ptr && !mem->borrowed) {
		if (__atomic_load_n(&free_blocks, __ATOMIC_RELAXED))
			sim_device_drain(mem->device);
		munmap(mem->ptr, mem->bytes);
		shunt_close_fd(&mem->fd);
	} else if (mem->ptr && mem->handle) {
		shared_put((struct shared_alloc *)mem->handle);
	}
	*mem = {};
}

int sim_mem_alloc_shared(int device, size_t bytes, void **ptr_p)
{
	struct shared_alloc *s = (struct shared_alloc *)sim_new(sizeof(*s));
	int err = s ? sim_share_alloc(device, bytes, &s->mem) : -ENOMEM;

	if (err) {
		sim_delete(s);
		return err;
	}
	s->users = 1;
	*ptr_p = s->mem.ptr;
	sim_lock(&shared_allocs_lock);
	s->next = shared_allocs;
	shared_allocs = s;
	sim_unlock(&shared_allocs_lock);
	return 0;
}

/* Who maps the file has the memory, as a NIC has that of a dma-buf. */
int sim_mem_dmabuf(int device, const void *ptr, size_t bytes, int *fd_p)
{
	struct shared_alloc *s;
	int fd = -1;

	sim_lock(&shared_allocs_lock);
	s = *shared_find(ptr);
	if (s && s->mem.device == device && s->mem.ptr == ptr && bytes <= s->mem.bytes)
		fd = SHUNT_FD(fcntl(s->mem.fd, F_DUPFD_CLOEXEC, 0));
	sim_unlock(&shared_allocs_lock);
	if (!s || fd < 0)
		return s ? -errno : -EINVAL;
	*fd_p = fd;
	return 0;
}

/* False: ptr is not from mem_alloc_shared. */
static bool shared_free(void *ptr)
{
	struct shared_alloc *s;

	sim_lock(&shared_allocs_lock);
	s = *shared_find(ptr);
	if (s && s->mem.ptr == ptr)
		s->freed = true;
	else
		s = nullptr;
	sim_unlock(&shared_allocs_lock);
	if (s)
		shared_put(s);
	return s;
}

int sim_share_export(
    int device, const void *ptr, size_t bytes, struct shunt_gpu_export *export_p, const char **reason_p)
{
	struct shared_alloc *s;
	int err = -EOPNOTSUPP, fd;

	*reason_p = "it is not from ncclMemAlloc";
	sim_lock(&shared_allocs_lock);
	s = *shared_find(ptr);
	if (s && s->mem.device != device) {
		*reason_p = "it is not memory of the communicator's device";
	} else if (s && bytes > s->mem.bytes - ((uintptr_t)ptr - (uintptr_t)s->mem.ptr)) {
		*reason_p = "it spans several allocations";
	} else if (s) {
		fd = SHUNT_FD(fcntl(s->mem.fd, F_DUPFD_CLOEXEC, 0));
		err = fd < 0 ? -errno : 0;
		if (!err)
			*export_p = { s->mem.ptr, s->mem.bytes, fd };
	}
	sim_unlock(&shared_allocs_lock);
	if (err && err != -EOPNOTSUPP)
		shunt_error("sim: cannot pass on %zu bytes: %s", bytes, shunt_error_text(err).s);
	return err;
}

int sim_mem_range(const void *ptr, void **base_p, size_t *bytes_p)
{
	struct shared_alloc *s;

	sim_lock(&shared_allocs_lock);
	s = *shared_find(ptr);
	if (s) {
		*base_p = s->mem.ptr;
		*bytes_p = s->mem.bytes;
	}
	sim_unlock(&shared_allocs_lock);
	return s ? 0 : -ENOENT;
}

static int alloc_handle(size_t align, size_t bytes, enum sim_kind kind, void **ptr_p)
{
	void *ptr;
	/* The sanitizers end a program that requests more than the heap has. */
	int err = bytes > (size_t)1 << 40 ? ENOMEM : posix_memalign(&ptr, align, bytes ? bytes : 1);

	if (err) {
		shunt_error("sim: no memory for %zu bytes", bytes);
		return -err;
	}
	err = sim_handle_add(ptr, kind);
	if (err) {
		free(ptr);
		return err;
	}
	*ptr_p = ptr;
	return 0;
}

int sim_mem_alloc(int device, size_t bytes, void **ptr_p)
{
	return sim_device_ok(device) ? alloc_handle(512, bytes, SIM_DEVICE_MEM, ptr_p) : -EINVAL;
}

int sim_mem_free(void *ptr)
{
	if (!ptr || shared_free(ptr))
		return 0;
	if (!sim_handle_remove(ptr, SIM_DEVICE_MEM))
		return -EINVAL;
	free(ptr);
	return 0;
}

int sim_mem_info(int device, size_t *free_p, size_t *total_p)
{
	if (!sim_device_ok(device))
		return -EINVAL;
	*free_p = *total_p = 0;
	return 0;
}

/* Of a page's begin on. Pages that nobody has used cost nothing. */
static void zero(void *ptr, size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = bytes / page * page;

	if (whole && madvise(ptr, whole, MADV_DONTNEED))
		whole = 0;
	memset((char *)ptr + whole, 0, bytes - whole);
}

int sim_host_alloc(size_t bytes, void **host_p, void **dev_p)
{
	void *ptr;
	int err = alloc_handle(4096, bytes, SIM_HOST_MEM, &ptr);

	if (err)
		return err;
	zero(ptr, bytes);
	*host_p = *dev_p = ptr;
	return 0;
}

void sim_host_free(void *host)
{
	if (host && sim_handle_remove(host, SIM_HOST_MEM))
		free(host);
}

int sim_host_register(void *host, size_t bytes, void **dev_p)
{
	if (!host || !bytes)
		return -EINVAL;
	*dev_p = host;
	return 0;
}

void sim_host_unregister(void *) {}

static int copies_block;

void shunt_sim_set_copies_block(int wait) { __atomic_store_n(&copies_block, wait, __ATOMIC_RELEASE); }

int sim_copy(int device, void *dst, const void *src, size_t bytes)
{
	uintptr_t both = (uintptr_t)dst | (uintptr_t)src;

	if (!sim_device_ok(device) || (bytes && (!dst || !src)))
		return -EINVAL;
	while (__atomic_load_n(&copies_block, __ATOMIC_ACQUIRE))
		usleep(1000);
	/* Running kernels may poll a word. */
	if (bytes == 4 && both % 4 == 0) {
		__atomic_store_n(
		    (uint32_t *)dst, __atomic_load_n((const uint32_t *)src, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
	} else if (bytes == 8 && both % 8 == 0) {
		__atomic_store_n(
		    (uint64_t *)dst, __atomic_load_n((const uint64_t *)src, __ATOMIC_ACQUIRE), __ATOMIC_RELAXED);
		tsan_acquire((void *)src); /* pairs with gpu_add_relaxed() */
	} else if (bytes) {
		memmove(dst, src, bytes);
	}
	return 0;
}
