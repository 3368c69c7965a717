/* SPDX-License-Identifier: MIT */
/* Protection domains, memory regions and their keys, and address handles. */
#include "tools/common/libc.h"
#include "fake.h"

/* Keys are 0xINDEXTT with a tag that changes at each use of the index; that for peers has this bit, so that the two are
 * not the same. */
enum { REMOTE_KEY = 0x40000000 };

struct fake_pd {
	struct ibv_pd verbs;
	_Atomic int users;
};

struct ibv_pd *ibv_alloc_pd(struct ibv_context *c)
{
	struct fake_pd *pd = calloc(1, sizeof(*pd));

	if (pd)
		pd->verbs.context = c;
	return pd ? &pd->verbs : NULL;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	if (atomic_load(&((struct fake_pd *)pd)->users))
		return EBUSY;
	free(pd);
	return 0;
}

/*
 * What the kernel has at [from, from + bytes): 0, or -EFAULT where a page is missing or cannot be written and shall be.
 * *device_p: a part of it is device memory.
 */
static int look(uint64_t from, uint64_t bytes, bool write, bool *device_p)
{
	const char *mark = fake_config()->device_maps;
	FILE *f = fopen("/proc/self/maps", "re");
	uint64_t at = from;
	char line[600];

	*device_p = false;
	if (!f)
		return -EFAULT;
	while (at < from + bytes && fgets(line, sizeof(line), f)) {
		unsigned long long start, end;
		char perms[8];

		if (sscanf(line, "%llx-%llx %7s", &start, &end, perms) != 3 || end <= at)
			continue;
		if (start > at || perms[0] != 'r' || (write && perms[1] != 'w'))
			break;
		*device_p |= *mark && strstr(line, mark);
		at = end;
	}
	fclose(f);
	return at < from + bytes ? -EFAULT : 0;
}

/* Puts the region into the table; takes it. */
static struct ibv_mr *enter(struct ibv_pd *pd, struct fake_mr *mr, uint64_t bytes)
{
	struct fake_nic *nic = fake_nic_of(pd->context);
	uint64_t limit = fake_config()->memlock;
	uint32_t index, tag;
	int err = 0;

	fake_lock(nic);
	for (index = nic->mr_next % FAKE_MRS; nic->mrs[index]; index = (index + 1) % FAKE_MRS)
		if (index == (nic->mr_next + FAKE_MRS - 1) % FAKE_MRS)
			err = ENOMEM;
	if (limit && nic->locked_bytes + bytes > limit)
		err = ENOMEM;
	if (!err) {
		tag = nic->mr_next / FAKE_MRS & 0x3f;
		nic->mr_next++;
		nic->mrs[index] = mr;
		nic->locked_bytes += bytes;
		mr->verbs.context = pd->context;
		mr->verbs.pd = pd;
		mr->verbs.handle = index;
		mr->verbs.lkey = (index + 1) << 8 | tag;
		mr->verbs.rkey = mr->verbs.lkey | REMOTE_KEY;
		atomic_fetch_add(&((struct fake_pd *)pd)->users, 1);
	}
	fake_unlock(nic);
	if (err) {
		if (mr->map)
			munmap(mr->map, mr->map_bytes);
		free(mr);
		errno = err;
		return NULL;
	}
	return &mr->verbs;
}

/* 0, EINVAL, or EOPNOTSUPP: paging on demand and memory windows, which many devices lack. */
static int check_access(unsigned access)
{
	const unsigned lacks = IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB;
	const unsigned known = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
	    IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_OPTIONAL_RANGE;

	if (access & lacks)
		return EOPNOTSUPP;
	if (access & ~known)
		return EINVAL;
	return access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) && !(access & IBV_ACCESS_LOCAL_WRITE) ?
	    EINVAL :
	    0;
}

static struct ibv_mr *reg(struct ibv_pd *pd, void *addr, size_t bytes, uint64_t iova, unsigned access)
{
	bool device = false;
	struct fake_mr *mr;
	int err = check_access(access);

	if (!err && bytes)
		err = -look((uintptr_t)addr, bytes, access & IBV_ACCESS_LOCAL_WRITE, &device);
	if (!err && device && !fake_config()->peermem)
		err = EFAULT;
	mr = err ? NULL : calloc(1, sizeof(*mr));
	if (!mr) {
		errno = err ? err : ENOMEM;
		return NULL;
	}
	mr->verbs.addr = addr;
	mr->verbs.length = bytes;
	mr->iova = iova;
	mr->access = access;
	mr->device = device;
	return enter(pd, mr, bytes);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t bytes, int access)
{
	return reg(pd, addr, bytes, (uintptr_t)addr, (unsigned)access & ~(unsigned)IBV_ACCESS_OPTIONAL_RANGE);
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t bytes, uint64_t iova, int access)
{
	return reg(pd, addr, bytes, iova, (unsigned)access & ~(unsigned)IBV_ACCESS_OPTIONAL_RANGE);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t bytes, uint64_t iova, unsigned access)
{
	if (fake_hidden("reg_mr_iova2")) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return reg(pd, addr, bytes, iova, access);
}

/* Memory of an exporter in this machine: a memfd, which the NIC maps, as a real one reaches the exporter's pages. */
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), start = offset & ~(page - 1);
	int protection = PROT_READ | (access & IBV_ACCESS_LOCAL_WRITE ? PROT_WRITE : 0);
	struct fake_mr *mr;
	struct stat st;
	int err = 0;

	if (fake_hidden("reg_dmabuf_mr") || !fake_nic_of(pd->context)->device->spec.dmabuf)
		err = EOPNOTSUPP;
	else if (fstat(fd, &st))
		err = EBADF;
	else if (check_access((unsigned)access) || !bytes || (offset ^ iova) & (page - 1) ||
	    offset + bytes > (uint64_t)st.st_size)
		err = EINVAL;
	mr = err ? NULL : calloc(1, sizeof(*mr));
	if (!mr) {
		errno = err ? err : ENOMEM;
		return NULL;
	}
	mr->map_bytes = offset + bytes - start;
	mr->map = mmap(NULL, mr->map_bytes, protection, MAP_SHARED, fd, (off_t)start);
	if (mr->map == MAP_FAILED) {
		free(mr);
		return NULL;
	}
	mr->verbs.addr = (char *)mr->map + (offset - start);
	mr->verbs.length = bytes;
	mr->iova = iova;
	mr->access = (unsigned)access;
	mr->device = true;
	return enter(pd, mr, bytes);
}

int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t bytes, int access)
{
	errno = EOPNOTSUPP;
	return IBV_REREG_MR_ERR_INPUT;
}

int ibv_dereg_mr(struct ibv_mr *ibv)
{
	struct fake_mr *mr = (struct fake_mr *)ibv;
	struct fake_nic *nic = fake_nic_of(ibv->context);

	fake_lock(nic);
	for (struct fake_qp *qp = nic->qps; qp; qp = qp->next)
		fake_land_all(qp);
	fake_parked_release(nic, 0, true);
	for (struct fake_qp *qp = nic->qps; qp; qp = qp->next)
		if (qp->write_mr == mr) {
			qp->write_mr = NULL;
			qp->write_to = NULL;
		}
	nic->mrs[ibv->handle] = NULL;
	nic->locked_bytes -= ibv->length;
	fake_unlock(nic);
	atomic_fetch_sub(&((struct fake_pd *)ibv->pd)->users, 1);
	if (mr->map)
		munmap(mr->map, mr->map_bytes);
	free(mr);
	return 0;
}

char *fake_mr_find(
    struct fake_nic *nic, const struct ibv_pd *pd, struct fake_span span, unsigned access, struct fake_mr **mr_p)
{
	uint32_t index = (span.key & ~(uint32_t)REMOTE_KEY) >> 8;
	struct fake_mr *mr = index >= 1 && index <= FAKE_MRS ? nic->mrs[index - 1] : NULL;

	if (!mr || (span.remote ? mr->verbs.rkey : mr->verbs.lkey) != span.key || mr->verbs.pd != pd)
		return NULL;
	if ((mr->access & access) != access || span.address < mr->iova || span.bytes > mr->verbs.length ||
	    span.address - mr->iova > mr->verbs.length - span.bytes)
		return NULL;
	*mr_p = mr;
	return (char *)mr->verbs.addr + (span.address - mr->iova);
}

struct fake_ah {
	struct ibv_ah verbs;
	struct ibv_ah_attr attr;
};

/* Only made and given back: what uses them, datagrams, is not there. */
struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	const struct fake_spec *s = &fake_nic_of(pd->context)->device->spec;
	struct fake_ah *ah;

	if (attr->port_num < 1 || attr->port_num > s->ports ||
	    (s->link_layer == IBV_LINK_LAYER_ETHERNET && !attr->is_global)) {
		errno = EINVAL;
		return NULL;
	}
	ah = calloc(1, sizeof(*ah));
	if (!ah)
		return NULL;
	ah->verbs.context = pd->context;
	ah->verbs.pd = pd;
	ah->attr = *attr;
	return &ah->verbs;
}

int ibv_destroy_ah(struct ibv_ah *ah)
{
	free(ah);
	return 0;
}
