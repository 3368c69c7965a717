/* SPDX-License-Identifier: MIT */
/*
 * A completion says that data is in the host's memory, and on its way to a GPU's. A read through the same NIC of the
 * GPU's memory comes back behind what is on its way, as PCI orders them. So where memory of GPUs is registered, signals
 * wait for one read of each region, through a QP that is connected with itself.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "base/log.h"
#include "transport/net/verbs/verbs_priv.h"

#define SCRATCH_BYTES 4096

static int connect_with_itself(struct verbs_device *device)
{
	struct shunt_gid gids[SHUNT_GID_MAX_OFFERED];
	struct verbs_path path = { .qpn = device->flush.qp->qp_num,
		.mtu = device->rail[0].attr.active_mtu,
		.timeout = 14,
		.retries = 7,
		.lid = device->rail[0].attr.lid };
	int n = verbs_gids(device->rail, gids), err;

	if (n < 0)
		return n;
	if (n && (device->rail[0].attr.link_layer == SHUNT_IBV_LINK_LAYER_ETHERNET || !path.lid)) {
		path.gid = &gids[0];
		path.sgid_index = gids[0].index;
	}
	err = verbs_qp_init(device->rail, device->flush.qp, false);
	return err ? err : verbs_qp_connect(device->rail, device->flush.qp, &path);
}

int verbs_flush_open(struct verbs_device *device)
{
	static const struct shunt_ibv_qp_cap cap = { VERBS_MAX_GPU_MEMORY, 1, 1, 1, 0 };
	const struct verbs_memory *memory = device->gpu_memory;
	int err, n = 0;
	uint32_t unused;

	for (; memory; memory = memory->next_gpu)
		n++;
	if (n == VERBS_MAX_GPU_MEMORY) {
		shunt_error("%s: no more than %d regions of GPUs' memory", device->rail[0].port->info.where, n);
		return -ENOSPC;
	}
	if (device->flush.qp)
		return 0;
	if (!device->scratch) {
		/* cppcheck-suppress invalidFunctionArg; without a file it is -1 */
		device->scratch = mmap(NULL, SCRATCH_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (device->scratch == MAP_FAILED) {
			device->scratch = NULL;
			shunt_error("%s: no memory for a page: %m", device->rail[0].port->info.where);
			return -ENOMEM;
		}
		device->scratch_mr = verbs_mem_own(device->rail, device->scratch, SCRATCH_BYTES, false);
	}
	if (!device->scratch_mr)
		return -ENOMEM;
	/* The first queue has room for these reads. */
	if (!device->rail[0].ncqs) {
		err = verbs_cq_take(device->rail);
		if (err < 0)
			return err;
		device->rail[0].cqs[err].endpoints--;
	}
	err = verbs_qp_create(device->rail, device->rail[0].cqs[0].cq, &cap, &device->flush.qp, &unused);
	if (!err)
		err = connect_with_itself(device);
	if (err)
		verbs_flush_close(device);
	return err;
}

void verbs_flush_close(struct verbs_device *device)
{
	if (device->flush.qp)
		device->ibv->destroy_qp(device->flush.qp);
	if (device->scratch_mr)
		device->ibv->dereg_mr(device->scratch_mr);
	if (device->scratch)
		munmap(device->scratch, SCRATCH_BYTES);
	free(device->flush.queue);
	device->scratch_mr = NULL;
	device->scratch = NULL;
	device->flush = (struct verbs_flush){ 0 };
}

void verbs_flush_defer(struct verbs_endpoint *ep, enum shunt_net_event_kind kind, uint32_t channel, uint32_t count)
{
	struct verbs_flush *f = &ep->device->flush;

	if (f->last == f->rows) {
		size_t rows = f->rows ? 2 * f->rows : 256;
		void *grown = realloc(f->queue, rows * sizeof(*f->queue));

		if (!grown) {
			verbs_fail(ep, -ENOMEM, "no memory for a signal");
			return;
		}
		f->queue = grown;
		f->rows = rows;
	}
	f->queue[f->last++] =
	    (struct verbs_deferred){ .event = { .kind = kind, .channel = channel, .count = count }, ep->id };
}

void verbs_flush_done(struct verbs_device *device, const struct shunt_ibv_wc *wc)
{
	device->flush.reading = false;
	if (wc->status == SHUNT_IBV_WC_SUCCESS) {
		device->flush.seen = device->flush.covered;
		return;
	}
	for (unsigned i = 0; i < device->nslots; i++)
		if (device->slots[i])
			verbs_fail(device->slots[i], -EIO, "the NIC cannot read the memory of the GPU: %s (status %d)",
			    verbs_status(device, wc->status), wc->status);
}

static void read_all(struct verbs_device *device)
{
	struct shunt_ibv_sge sge = { (uintptr_t)device->scratch, 1, device->scratch_mr->lkey };
	struct shunt_ibv_send_wr wr[VERBS_MAX_GPU_MEMORY], *bad;
	const struct verbs_memory *memory = device->gpu_memory;
	int n = 0;

	for (; memory; memory = memory->next_gpu, n++) {
		wr[n] = (struct shunt_ibv_send_wr){ .wr_id = verbs_wr_id(0, VERBS_FLUSH, 0, 0),
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = SHUNT_IBV_WR_RDMA_READ,
			.remote_addr = (uintptr_t)memory->base.start,
			.rkey = memory->mr[0]->rkey };
		if (n)
			wr[n - 1].next = &wr[n];
	}
	wr[n - 1].send_flags = SHUNT_IBV_SEND_SIGNALED;
	device->flush.covered = device->flush.last;
	device->flush.reading = true;
	if (device->rail[0].context->post_send(device->flush.qp, wr, &bad))
		verbs_flush_done(device, &(struct shunt_ibv_wc){ .status = SHUNT_IBV_WC_LOC_PROT_ERR });
}

void verbs_flush_go(struct verbs_device *device, struct verbs_sink *sink)
{
	struct verbs_flush *f = &device->flush;

	if (!device->gpu_memory && !f->reading)
		f->seen = f->last;
	for (; f->first < f->seen && sink->n < sink->max; f->first++) {
		const struct verbs_deferred *row = &f->queue[f->first];
		struct verbs_endpoint *ep = verbs_endpoint_find(device, row->id);

		if (ep && ep->state == VERBS_READY)
			verbs_tell(sink, ep, row->event.kind, row->event.channel, row->event.count);
	}
	if (f->first == f->last)
		f->first = f->last = f->seen = f->covered = 0;
	else if (f->seen < f->last && !f->reading)
		read_all(device);
}
