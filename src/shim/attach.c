/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "core/log.h"
#include "gpu/gpu_ops.h"
#include "shim/attach.h"
#include "shim/real.h"

static int env_int(const char *name, int otherwise)
{
	const char *text = getenv(name);
	char *end;
	long value;

	if (!text || !*text)
		return otherwise;
	value = strtol(text, &end, 10);
	return *end || value < INT_MIN || value > INT_MAX ? otherwise : (int)value;
}

int shunt_settings_read(const ncclConfig_t *config, const struct shunt_entry *parent, struct shunt_settings *settings_p)
{
	ncclConfig_t c = {.blocking = NCCL_CONFIG_UNDEF_INT, .maxCTAs = NCCL_CONFIG_UNDEF_INT};
	int blocking, max_ctas, err = 0;

	if (config && config->magic != SHUNT_NCCL_CONFIG_MAGIC)
		err = -EINVAL;
	else if (config)
		memcpy(&c, config, config->size < sizeof(c) ? config->size : sizeof(c)); /* the caller's struct may end earlier */
	if (c.blocking != NCCL_CONFIG_UNDEF_INT && c.blocking != 0 && c.blocking != 1)
		err = -EINVAL;
	if (c.maxCTAs != NCCL_CONFIG_UNDEF_INT && c.maxCTAs <= 0)
		err = -EINVAL;

	blocking = c.blocking == NCCL_CONFIG_UNDEF_INT ? (parent ? parent->blocking : 1) : c.blocking;
	max_ctas = c.maxCTAs == NCCL_CONFIG_UNDEF_INT ? (parent ? parent->max_ctas : 0) : c.maxCTAs;
	settings_p->blocking = env_int("NCCL_COMM_BLOCKING", blocking) != 0;
	settings_p->max_ctas = env_int("NCCL_MAX_CTAS", max_ctas);
	if (settings_p->max_ctas < 0)
		settings_p->max_ctas = 0;
	return err;
}

struct shunt_entry *shunt_attach(const struct shunt_comm_desc *desc, const struct shunt_settings *settings)
{
	struct shunt_comm_desc d = *desc;
	struct shunt_comm *comm;
	struct shunt_entry *e;
	int err;

	d.max_ctas = settings->max_ctas;
	err = shunt_comm_create(&d, &comm);
	if (err && !d.forward_why && !d.standalone) {
		d.forward_why = "its socket could not be made on this rank";
		err = shunt_comm_create(&d, &comm);
	}
	if (err)
		return NULL;
	e = shunt_entry_create(comm);
	if (!e)
		return NULL;
	e->id = desc->id;
	e->forward_why = desc->forward_why;
	e->max_ctas = settings->max_ctas;
	e->blocking = settings->blocking;
	atomic_store(&e->ready, d.rank >= 0 && d.nranks > 0 && d.device >= 0);
	return e;
}

bool shunt_attach_ready(struct shunt_entry *e, ncclComm_t comm)
{
	int rank, nranks, device;

	if (atomic_load_explicit(&e->ready, memory_order_acquire))
		return true;
	pthread_mutex_lock(&e->lock);
	if (!atomic_load(&e->ready) && !real_CommUserRank(comm, &rank) && !real_CommCount(comm, &nranks) &&
			!real_CommCuDevice(comm, &device)) {
		shunt_comm_set_rank(e->comm, rank, nranks, device);
		atomic_store_explicit(&e->ready, true, memory_order_release);
	}
	pthread_mutex_unlock(&e->lock);
	return atomic_load(&e->ready);
}

void shunt_attach_banner(int rank, int device)
{
	static atomic_bool said;
	struct shunt_gpu_info info;
	int version = 0;

	if (rank || atomic_exchange(&said, true))
		return;
	if (shunt_mode() == SHUNT_OVERLAY) {
		real_GetVersion(&version);
		shunt_banner("Shunt %s | real NCCL %d.%d.%d (%s)", shunt_version(), version / 10000, version / 100 % 100,
		    version % 100, shunt_real_nccl_path());
	} else if (device >= 0 && shunt_gpu() && !shunt_gpu()->device_info(device, &info)) {
		shunt_banner("Shunt %s | no real NCCL | device %s: %s", shunt_version(), shunt_gpu()->name, info.name);
	} else {
		shunt_banner("Shunt %s | no real NCCL", shunt_version());
	}
}
