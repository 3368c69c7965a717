/* SPDX-License-Identifier: MIT */
#include "comm/observe/marks.h"
#include <stdlib.h>
#include "base/log.h"
#include "base/rlimits.h"

#define SLOTS 512u /* communicators that have words */
#define WORDS 8u   /* of a communicator */
#define SEQ_BITS 40
#define MAX_DUE 16u /* pairs of a communicator and a stream in a group; the calls of others get no mark */

/* Never freed, so that a thread in NCCL can use it when another one has ended the communicator. */
struct shunt_marks_slot {
	atomic_bool taken, refused;
	atomic_uint_fast64_t use, last; /* last: as a word */
	atomic_uint_fast64_t *words;
	uint64_t *on_device; /* the same, as streams see them */
};

static _Atomic(struct shunt_marks_slot *) process_slots;

static struct shunt_marks_slot *slots_get(const struct shunt_gpu_ops *gpu)
{
	struct shunt_marks_slot *slots = atomic_load(&process_slots), *none = NULL;
	void *host, *on_device;

	if (slots || !(slots = calloc(SLOTS, sizeof(*slots))))
		return slots;
	if (!gpu->host_alloc((size_t)SLOTS * WORDS * sizeof(uint64_t), &host, &on_device)) {
		for (size_t i = 0; i < SLOTS; i++) {
			slots[i].words = (atomic_uint_fast64_t *)host + i * WORDS;
			slots[i].on_device = (uint64_t *)on_device + i * WORDS;
		}
		if (atomic_compare_exchange_strong(&process_slots, &none, slots))
			return slots;
		gpu->host_free(host);
	}
	free(slots);
	return none;
}

void shunt_marks_open(struct shunt_marks *m, const struct shunt_gpu_ops *gpu, int device)
{
	struct shunt_marks_slot *slots = gpu && device >= 0 && !atomic_load(&m->slot) ? slots_get(gpu) : NULL;

	for (size_t i = 0; slots && i < SLOTS; i++) {
		if (atomic_exchange(&slots[i].taken, true))
			continue;
		m->gpu = gpu;
		m->device = device;
		m->use = atomic_fetch_add(&slots[i].use, 1) + 1;
		atomic_store(&slots[i].refused, false);
		atomic_store(&m->slot, &slots[i]);
		return;
	}
}

void shunt_marks_close(struct shunt_marks *m)
{
	struct shunt_marks_slot *slot = atomic_load(&m->slot);

	if (slot)
		atomic_store(&slot->taken, false);
}

/* The call in a word, if this use of the slot has written it. */
static uint64_t seq_of(const struct shunt_marks *m, uint64_t word)
{
	return word >> SEQ_BITS == m->use ? word & ((UINT64_C(1) << SEQ_BITS) - 1) : 0;
}

uint64_t shunt_marks_last(const struct shunt_marks *m)
{
	struct shunt_marks_slot *slot = atomic_load(&m->slot);

	return slot ? seq_of(m, atomic_load(&slot->last)) : 0;
}

uint64_t shunt_marks_finished(const struct shunt_marks *m)
{
	struct shunt_marks_slot *slot = atomic_load(&m->slot);
	uint64_t most = 0;

	for (size_t i = 0; slot && i < WORDS; i++) {
		uint64_t seq = seq_of(m, atomic_load_explicit(&slot->words[i], memory_order_acquire));

		most = seq > most ? seq : most;
	}
	return most;
}

/* ---- what is due */

static _Thread_local struct {
	struct due {
		struct shunt_marks_slot *slot;
		uint64_t use, seq;
		const struct shunt_gpu_ops *gpu;
		int device;
		void *stream;
	} v[MAX_DUE];
	unsigned n;
} due;

void shunt_marks_due(const struct shunt_marks *m, void *stream, uint64_t seq)
{
	struct shunt_marks_slot *slot = atomic_load(&m->slot);
	unsigned i = 0;

	if (!slot || atomic_load(&slot->refused))
		return;
	while (i < due.n && (due.v[i].slot != slot || due.v[i].use != m->use || due.v[i].stream != stream))
		i++;
	if (i == due.n && i < MAX_DUE)
		due.n++;
	if (i < MAX_DUE)
		due.v[i] = (struct due){ slot, m->use, seq, m->gpu, m->device, stream };
}

static void mark(const struct due *d)
{
	struct shunt_marks_slot *slot = d->slot;
	uint64_t value = d->use << SEQ_BITS | d->seq;
	int err;

	if (atomic_load(&slot->use) != d->use)
		return; /* another communicator has it */
	err = d->gpu->mark(d->device, d->stream, &slot->on_device[d->seq % WORDS], value);
	if (!err && value > atomic_load(&slot->last))
		atomic_store(&slot->last, value);
	if (err && !atomic_exchange(&slot->refused, true))
		shunt_info(SHUNT_LOG_INIT,
		    "SHUNT_MARKS: device %d takes no mark, so it is not known what NCCL has finished: %s", d->device,
		    shunt_error_text(err).s);
}

void shunt_marks_settle(bool has_launched)
{
	for (unsigned i = 0; has_launched && i < due.n; i++)
		mark(&due.v[i]);
	due.n = 0;
}
