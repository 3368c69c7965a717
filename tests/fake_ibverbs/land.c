/* SPDX-License-Identifier: MIT */
/*
 * How what a QP received comes into memory: a queue of effects. Data may land in pieces over time; a completion, a read
 * or an atomic waits for all data before it. Data for device memory may be parked behind the host bridge, where
 * completions pass it.
 */
#include <stdlib.h>
#include <string.h>
#include "fake.h"

/* The parts at the ends that are not aligned go by bytes: who reads memory while it arrives must not split 8 bytes. */
void fake_copy_in(char *to, const void *from, size_t bytes)
{
	const char *f = from;

	for (; bytes && (uintptr_t)to & 7; to++, f++, bytes--)
		__atomic_store_n(to, *f, __ATOMIC_RELAXED);
	for (; bytes >= 8; to += 8, f += 8, bytes -= 8) {
		uint64_t word;

		memcpy(&word, f, 8);
		__atomic_store_n((uint64_t *)(void *)to, word, __ATOMIC_RELAXED);
	}
	if (bytes >= 4) {
		uint32_t word;

		memcpy(&word, f, 4);
		__atomic_store_n((uint32_t *)(void *)to, word, __ATOMIC_RELAXED);
		to += 4;
		f += 4;
		bytes -= 4;
	}
	for (; bytes; to++, f++, bytes--)
		__atomic_store_n(to, *f, __ATOMIC_RELAXED);
}

void fake_copy_out(void *to, const char *from, size_t bytes)
{
	char *t = to;

	for (; bytes && (uintptr_t)from & 7; t++, from++, bytes--)
		*t = __atomic_load_n(from, __ATOMIC_RELAXED);
	for (; bytes >= 8; t += 8, from += 8, bytes -= 8) {
		uint64_t word = __atomic_load_n((const uint64_t *)(const void *)from, __ATOMIC_RELAXED);

		memcpy(t, &word, 8);
	}
	if (bytes >= 4) {
		uint32_t word = __atomic_load_n((const uint32_t *)(const void *)from, __ATOMIC_RELAXED);

		memcpy(t, &word, 4);
		t += 4;
		from += 4;
		bytes -= 4;
	}
	for (; bytes; t++, from++, bytes--)
		*t = __atomic_load_n(from, __ATOMIC_RELAXED);
}

void fake_land_add(struct fake_qp *qp, struct fake_effect *e)
{
	*qp->effects_end = e;
	qp->effects_end = &e->next;
	if (e->kind == EFFECT_DATA)
		qp->effect_bytes += e->bytes;
}

static void remove_effect(struct fake_qp *qp, struct fake_effect *e)
{
	struct fake_effect **at = &qp->effects;

	while (*at != e)
		at = &(*at)->next;
	*at = e->next;
	if (qp->effects_end == &e->next)
		qp->effects_end = at;
	if (e->kind == EFFECT_DATA)
		qp->effect_bytes -= e->bytes;
	else if (e->kind == EFFECT_READ || e->kind == EFFECT_ATOMIC)
		qp->effect_reads--;
	free(e);
}

void fake_parked_release(struct fake_nic *nic, int64_t now, bool all)
{
	while (nic->parked) {
		struct fake_parked *p = nic->parked;

		if (!all && now < p->until) {
			fake_again(nic, p->until);
			return;
		}
		fake_copy_in(p->to, p->data, p->bytes);
		nic->parked = p->next;
		if (!nic->parked)
			nic->parked_end = &nic->parked;
		free(p);
	}
}

static void park(struct fake_nic *nic, char *to, const char *from, uint32_t bytes)
{
	const struct fake_knob *us = &fake_config()->park_us;
	struct fake_parked *p = calloc(1, sizeof(*p) + bytes + 8);

	if (!p)
		abort(); /* a test without memory */
	p->to = to;
	p->bytes = bytes;
	p->until = fabric_now() + (int64_t)(us->value / 2 + fake_random(us, us->value / 2)) * 1000;
	memcpy(p->data, from, bytes);
	*nic->parked_end = p;
	nic->parked_end = &p->next;
	fake_again(nic, p->until);
}

static bool parks(const struct fake_effect *e)
{
	return fake_config()->park_all || (fake_config()->park && e->device);
}

static void store(struct fake_qp *qp, const struct fake_effect *e, uint32_t at, uint32_t bytes)
{
	if (parks(e))
		park(qp->nic, e->to + at, (const char *)e->data + at, bytes);
	else
		fake_copy_in(e->to + at, (const char *)e->data + at, bytes);
}

/* One piece of 64 aligned bytes; in relaxed ordering the last one that is left. */
static void land_piece(struct fake_qp *qp, struct fake_effect *e)
{
	uint32_t left = e->bytes - e->done, n;

	if (e->relaxed) {
		uint32_t over = (uint32_t)((uintptr_t)(e->to + left) & 63);

		n = over ? over : 64;
		n = n < left ? n : left;
		store(qp, e, left - n, n);
	} else {
		n = 64 - (uint32_t)((uintptr_t)(e->to + e->done) & 63);
		n = n < left ? n : left;
		store(qp, e, e->done, n);
	}
	e->done += n;
	if (e->done == e->bytes)
		remove_effect(qp, e);
}

/* Writes to memory with relaxed ordering pass each other. */
static struct fake_effect *choose(struct fake_qp *qp)
{
	struct fake_effect *e = qp->effects, *chosen = e;
	uint64_t n = 0;

	for (; e && e->kind == EFFECT_DATA && e->relaxed && n < 8; e = e->next)
		if (!fake_random(&fake_config()->piece_us, ++n))
			chosen = e;
	return chosen;
}

static bool land_data(struct fake_qp *qp, struct fake_effect *e, int64_t now)
{
	const struct fake_knob *us = &fake_config()->piece_us;

	if (!us->value) {
		store(qp, e, 0, e->bytes);
		remove_effect(qp, e);
		return true;
	}
	if (now < qp->land_next) {
		fake_again(qp->nic, qp->land_next);
		return false;
	}
	if (!fake_polled(qp->nic, qp->land_polls))
		return false;
	for (uint64_t n = 1 + fake_random(us, 8); n && qp->effects && qp->effects->kind == EFFECT_DATA; n--)
		land_piece(qp, choose(qp));
	qp->land_next = now + (int64_t)fake_random(us, us->value * 1000);
	qp->land_polls = fake_polls(qp->nic);
	return true;
}

/* The memory of a read or an atomic; parked data for it has come by then. NULL: it was refused. */
static char *memory_of(struct fake_qp *qp, const struct fake_effect *e, uint64_t bytes, unsigned access)
{
	struct fake_mr *mr;
	struct fake_span span = { e->rkey, true, e->address, bytes };
	char *memory = fake_mr_find(qp->nic, qp->verbs.pd, span, access, &mr);

	if (memory && (mr->device || fake_config()->park_all))
		fake_parked_release(qp->nic, 0, true);
	return memory;
}

static bool serve_read(struct fake_qp *qp, struct fake_effect *e)
{
	struct packet *p = &qp->nic->packet;
	bool did = false;

	do {
		const char *from = e->bytes ? memory_of(qp, e, e->bytes, IBV_ACCESS_REMOTE_READ) : NULL;
		uint32_t n = e->bytes - e->done < e->mtu ? e->bytes - e->done : e->mtu;

		if (e->bytes && !from)
			break; /* the region went away: no answer, and the requester's time-out */
		memset(p, 0, offsetof(struct packet, payload));
		p->op = OP_READ_DATA;
		p->psn = e->psn + e->done / e->mtu;
		p->bytes = n;
		if (n)
			fake_copy_out(p->payload, from + e->done, n);
		if (fake_transmit(qp, p))
			return did;
		did = true;
		e->done += n;
	} while (e->done < e->bytes);
	remove_effect(qp, e);
	return true;
}

/*
 * Devices whose atomics are atomic only among each other's: a load and a store, so that an addition of the program in
 * between is lost, as it is there.
 */
static uint64_t do_atomic(const struct fake_qp *qp, const struct fake_effect *e, uint64_t *at)
{
	static pthread_mutex_t unit = PTHREAD_MUTEX_INITIALIZER;
	uint64_t old, value;

	if (qp->nic->device->spec.atomics == 2) {
		if (e->op == OP_ADD)
			return __atomic_fetch_add(at, e->swap, __ATOMIC_ACQ_REL);
		old = e->compare;
		__atomic_compare_exchange_n(at, &old, e->swap, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
		return old;
	}
	pthread_mutex_lock(&unit);
	old = __atomic_load_n(at, __ATOMIC_ACQUIRE);
	value = e->op == OP_ADD ? old + e->swap : e->swap;
	if (e->op == OP_ADD || old == e->compare)
		__atomic_store_n(at, value, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&unit);
	return old;
}

static bool serve_atomic(struct fake_qp *qp, struct fake_effect *e)
{
	struct packet *p = &qp->nic->packet;

	if (!e->done) {
		char *at = memory_of(qp, e, 8, IBV_ACCESS_REMOTE_ATOMIC);

		if (!at || (uintptr_t)at & 7) {
			remove_effect(qp, e);
			return true;
		}
		e->swap = do_atomic(qp, e, (uint64_t *)(void *)at);
		e->done = 1;
		qp->cache[qp->cache_next++ % FAKE_ATOMIC_CACHE] = (struct fake_cached){ e->psn, e->swap, true };
	}
	memset(p, 0, offsetof(struct packet, payload));
	p->op = OP_ATOMIC_VALUE;
	p->psn = e->psn;
	p->swap = e->swap;
	if (fake_transmit(qp, p))
		return false;
	remove_effect(qp, e);
	return true;
}

bool fake_land(struct fake_qp *qp, int64_t now)
{
	bool did = false, more = true;

	while (qp->effects && more) {
		struct fake_effect *e = qp->effects;

		switch (e->kind) {
		case EFFECT_DATA:
			more = land_data(qp, e, now);
			break;
		case EFFECT_RECEIVED:
			fake_complete(qp, false, &e->cqe);
			remove_effect(qp, e);
			break;
		case EFFECT_READ:
			more = serve_read(qp, e);
			break;
		case EFFECT_ATOMIC:
			more = serve_atomic(qp, e);
			break;
		case EFFECT_REFUSAL:
			fake_responder_refuses(qp, e);
			break;
		}
		did |= more;
	}
	return did;
}

void fake_land_all(struct fake_qp *qp)
{
	struct fake_effect *next;

	for (struct fake_effect *e = qp->effects; e; e = next) {
		next = e->next;
		if (e->kind == EFFECT_DATA && e->relaxed)
			store(qp, e, 0, e->bytes - e->done);
		else if (e->kind == EFFECT_DATA)
			store(qp, e, e->done, e->bytes - e->done);
		else if (e->kind == EFFECT_RECEIVED)
			fake_complete(qp, false, &e->cqe);
		else if (atomic_load(&qp->state) != IBV_QPS_ERR && atomic_load(&qp->state) != IBV_QPS_RESET)
			continue; /* a region is taken away: reads of others go on */
		remove_effect(qp, e);
	}
}
