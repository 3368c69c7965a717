/* SPDX-License-Identifier: MIT */
#include "transport/symm/host_memory.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/fd.h"
#include "topology/pci.h"

int shunt_host_memory_map(const struct shunt_gpu_ops *gpu, int fd, size_t bytes, struct shunt_gpu_mem *mem_p)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	int err;

	*mem_p = (struct shunt_gpu_mem){ .fd = -1 };
	if (at == MAP_FAILED)
		return -errno;
	(void)madvise(at, bytes, MADV_DONTFORK); /* a child would keep the memory */
	err = gpu->host_register(at, bytes, &mem_p->ptr);
	if (err) {
		munmap(at, bytes);
		mem_p->ptr = NULL;
		return err;
	}
	mem_p->host = at;
	mem_p->bytes = bytes;
	return 0;
}

/*
 * The file's pages are to be on the NUMA node of this device, whose loads wait and which therefore reads what is there.
 * Where the kernel or a container forbids that, they are where the thread runs.
 */
static void prefer_node_of(const struct shunt_gpu_ops *gpu, int device, int fd, size_t bytes)
{
	struct shunt_pci_place place;
	struct shunt_gpu_info info;
	unsigned long node;
	void *at;

	if (device < 0 || gpu->device_info(device, &info) || !*info.pci)
		return;
	shunt_pci_place(info.pci, &place);
	if (place.numa < 0 || place.numa >= (int)(8 * sizeof(node)))
		return;
	at = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		return;
	node = 1ul << place.numa;
	syscall(SYS_mbind, at, bytes, MPOL_PREFERRED, &node, 8 * sizeof(node) + 1, 0);
	munmap(at, bytes); /* the file keeps it */
}

int shunt_host_memory_create(const struct shunt_gpu_ops *gpu, int device, size_t bytes, struct shunt_gpu_mem *mem_p)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char name[32];
	int fd, err;

	snprintf(name, sizeof(name), "shunt-memory-%d", device);
	fd = SHUNT_FD(memfd_create(name, MFD_CLOEXEC));
	*mem_p = (struct shunt_gpu_mem){ .fd = -1 };
	bytes = (bytes + page - 1) / page * page;
	if (fd < 0)
		return -errno;
	prefer_node_of(gpu, device, fd, bytes);
	/* Memory that a later touch does not find would kill the process. */
	err = fallocate(fd, 0, 0, (off_t)bytes) ? -errno : shunt_host_memory_map(gpu, fd, bytes, mem_p);
	if (err)
		shunt_close_fd(&fd);
	mem_p->fd = fd;
	return err;
}

void shunt_host_memory_free(const struct shunt_gpu_ops *gpu, struct shunt_gpu_mem *mem)
{
	if (mem->host) {
		gpu->host_unregister(mem->host);
		munmap(mem->host, mem->bytes);
	}
	shunt_close_fd(&mem->fd);
	*mem = (struct shunt_gpu_mem){ .fd = -1 };
}
