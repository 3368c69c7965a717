/* SPDX-License-Identifier: MIT */
/* The calls that an exchange of parts makes: who sends which part to whom, and what becomes of what comes in. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "algos/algos.h"

#define BLOCKS 64

/* This rank's messages, one list for each thing that it may do. */
enum { SEND_TO = 0, TAKE_FROM = SHUNT_KARGS_MAX_RANKS, OWN = 2 * SHUNT_KARGS_MAX_RANKS, LISTS };

struct lists {
	size_t count[LISTS], first[LISTS];
	struct shunt_message *message; /* NULL while they are counted */
	uint64_t align;                /* all addresses and sizes, or-ed */
	size_t self_sent, self_taken;
	int rank;
};

static struct shunt_message *add(struct lists *l, unsigned list, const void *from, void *to, uint64_t bytes)
{
	size_t i = l->count[list]++;

	l->align |= (uintptr_t)from | (uintptr_t)to | bytes;
	if (!l->message)
		return NULL;
	struct shunt_message *m = &l->message[l->first[list] + i];
	*m = (struct shunt_message){ .from = from, .to = to, .bytes = bytes };
	return m;
}

static void add_send(struct lists *l, int peer, const void *from, uint64_t bytes)
{
	if (peer != l->rank)
		add(l, SEND_TO + (unsigned)peer, from, NULL, bytes);
}

static void add_take(struct lists *l, int peer, void *to, uint64_t bytes)
{
	if (peer != l->rank)
		add(l, TAKE_FROM + (unsigned)peer, NULL, to, bytes);
}

static void add_copy(struct lists *l, const void *from, void *to, uint64_t bytes)
{
	if (from != to)
		add(l, OWN, from, to, bytes);
}

/* A message to ourselves: the i-th send meets the i-th receive, whichever was issued first. */
static void add_self(struct lists *l, const void *from, void *to, uint64_t bytes)
{
	size_t *done = from ? &l->self_sent : &l->self_taken, i = (*done)++;

	if (i == l->count[OWN]) {
		add(l, OWN, from, to, bytes);
		return;
	}
	l->align |= (uintptr_t)from | (uintptr_t)to | bytes;
	if (l->message) {
		struct shunt_message *m = &l->message[l->first[OWN] + i];

		m->from = from ? from : m->from;
		m->to = to ? to : m->to;
		m->bytes = bytes < m->bytes ? bytes : m->bytes; /* NCCL takes two sizes without a word */
	}
}

static char *at(const void *base, uint64_t offset)
{
	return (char *)(uintptr_t)base + offset;
}

/* What a call asks of this rank. */
static void add_call(struct lists *l, const struct shunt_scope *scope, const struct shunt_coll *c)
{
	uint64_t part = shunt_coll_bytes(c);
	int n = scope->nranks, rank = l->rank;
	bool root = rank == c->root;

	switch (c->kind) {
	case SHUNT_SEND:
	case SHUNT_RECV:
		if (!part)
			break; /* both ends know that nothing comes */
		if (root)
			add_self(l, c->kind == SHUNT_SEND ? c->send : NULL, c->kind == SHUNT_RECV ? c->recv : NULL, part);
		else if (c->kind == SHUNT_SEND)
			add_send(l, c->root, c->send, part);
		else
			add_take(l, c->root, c->recv, part);
		break;
	case SHUNT_ALLGATHER:
		for (int p = 0; p < n; p++) {
			add_send(l, p, c->send, part);
			add_take(l, p, at(c->recv, p * part), part);
		}
		add_copy(l, c->send, at(c->recv, rank * part), part);
		break;
	case SHUNT_ALLTOALL:
		for (int p = 0; p < n; p++) {
			add_send(l, p, at(c->send, p * part), part);
			add_take(l, p, at(c->recv, p * part), part);
		}
		add_copy(l, at(c->send, rank * part), at(c->recv, rank * part), part);
		break;
	case SHUNT_BROADCAST:
		if (!root) {
			add_take(l, c->root, c->recv, part);
			break;
		}
		for (int p = 0; p < n; p++)
			add_send(l, p, c->send, part);
		add_copy(l, c->send, c->recv, part);
		break;
	case SHUNT_SCATTER:
		if (!root) {
			add_take(l, c->root, c->recv, part);
			break;
		}
		for (int p = 0; p < n; p++)
			add_send(l, p, at(c->send, p * part), part);
		add_copy(l, at(c->send, rank * part), c->recv, part);
		break;
	case SHUNT_GATHER:
		if (!root) {
			add_send(l, c->root, c->send, part);
			break;
		}
		for (int p = 0; p < n; p++)
			add_take(l, p, at(c->recv, p * part), part);
		add_copy(l, c->send, at(c->recv, rank * part), part);
		break;
	case SHUNT_REDUCESCATTER:
		for (int p = 0; p < n; p++)
			add_send(l, p, at(c->send, p * part), part);
		add(l, OWN, at(c->send, rank * part), c->recv, part);
		break;
	case SHUNT_REDUCE:
		if (root)
			add(l, OWN, c->send, c->recv, part);
		else
			add_send(l, c->root, c->send, part);
		break;
	case SHUNT_ALLREDUCE: /* of one rank */
		add(l, OWN, c->send, c->recv, part);
		break;
	default:
		break;
	}
}

static unsigned max_blocks(const struct shunt_scope *scope)
{
	unsigned most = scope->sim ? 2 : BLOCKS;

	return scope->max_ctas && (unsigned)scope->max_ctas < most ? (unsigned)scope->max_ctas : most;
}

static unsigned max_roles(const struct shunt_scope *scope, bool folds)
{
	return (unsigned)(folds ? scope->nranks : 2 * scope->nranks - 1);
}

static unsigned max_warps(const struct shunt_scope *scope, bool folds)
{
	return shunt_max_warps(scope, max_blocks(scope), max_roles(scope, folds));
}

/* Channels of a pair that a call may use: the rings that there are, and the warps that the user allows. The same on all ranks. */
static unsigned max_channels(const struct shunt_scope *scope, bool folds)
{
	unsigned max = SHUNT_XCHG_PER_PEER(scope->nranks), roles = max_roles(scope, folds);
	unsigned blocks = max_blocks(scope), warps = max_warps(scope, folds);

	if (scope->max_channels && max > scope->max_channels)
		max = scope->max_channels;
	/* Every role needs its warps, and one block has enough for one channel of each of the 15 roles of 8 ranks. */
	if (max > blocks * warps / roles)
		max = blocks * warps / roles;
	return scope->sim && max > 2 ? 2 : max;
}

/* A role for each list that has messages from index `from` on, at most `room` of each; returns the number of messages. */
static unsigned fill_roles(const struct shunt_scope *scope, const struct lists *l, bool folds, size_t from, size_t room,
    struct shunt_kargs *k, struct shunt_role *roles, struct shunt_message *messages, struct shunt_work *work)
{
	unsigned nroles = 0, nmessages = 0, most = 0;

	/* Ranks do not all begin with the same peer. */
	for (unsigned i = 0; i < LISTS; i++) {
		unsigned list = i < OWN ? (i + (unsigned)l->rank) % SHUNT_KARGS_MAX_RANKS + i / TAKE_FROM * TAKE_FROM : i;
		size_t n = l->count[list] - from;
		unsigned channels = 0;

		if (l->count[list] <= from)
			continue;
		if (n > room)
			n = room;
		memcpy(&messages[nmessages], &l->message[l->first[list] + from], n * sizeof(*messages));
		for (size_t m = 0; m < n; m++) {
			uint64_t units = (messages[nmessages + m].bytes + SHUNT_UNIT_DATA - 1) / SHUNT_UNIT_DATA;

			if (units > channels)
				channels = units < k->channels ? (unsigned)units : k->channels;
		}
		roles[nroles++] = (struct shunt_role){
			.what = list < TAKE_FROM ? SHUNT_ROLE_SEND : list < OWN ? SHUNT_ROLE_TAKE : folds ? SHUNT_ROLE_FOLD : SHUNT_ROLE_COPY,
			.peer = (uint8_t)(list < OWN ? list % SHUNT_KARGS_MAX_RANKS : 0),
			.channels = (uint16_t)channels,
			.first = (uint16_t)nmessages,
			.count = (uint16_t)n,
		};
		nmessages += (unsigned)n;
		if (channels > most)
			most = channels;
	}
	k->roles = (uint16_t)nroles;
	shunt_spread(scope, (uint64_t)nroles * most, scope->sim ? 2 : BLOCKS, max_warps(scope, folds), work);
	return nmessages;
}

/* Copies move bytes; their kernel is that of the largest element that all addresses and sizes are multiples of. */
static enum shunt_dtype copy_type(uint64_t align)
{
	return align & 1 ? SHUNT_U8 : align & 2 ? SHUNT_F16 : align & 4 ? SHUNT_U32 : SHUNT_U64;
}

static int emit_lists(const struct shunt_issue *issue, const struct shunt_pick *pick, const struct lists *l, bool folds, bool p2p, size_t total)
{
	const struct shunt_scope *scope = issue->scope;
	bool many = total > SHUNT_FEW_MESSAGES && !folds;
	_Alignas(struct shunt_work) char small[offsetof(struct shunt_work, args) + sizeof(struct shunt_kargs_few)];
	struct shunt_work *work = many ? malloc(sizeof(*work)) : (struct shunt_work *)small;
	size_t max = many ? SHUNT_MANY_MESSAGES : SHUNT_FEW_MESSAGES, room = total, longest = 0;
	unsigned lists = 0;
	int err = 0;

	if (!work)
		return -ENOMEM;
	for (unsigned i = 0; i < LISTS; i++) {
		lists += l->count[i] != 0;
		longest = l->count[i] > longest ? l->count[i] : longest;
	}
	if (total > max)
		room = max / lists;
	work->args.k = *issue->base;
	work->args.k.channels = (uint16_t)max_channels(scope, folds);
	work->args.k.flags = pick->flags;
	work->args.k.scalar = pick->scalar;
	if (folds)
		work->kernel = pick->kernel;
	else
		work->kernel = SHUNT_KERNEL(many ? SHUNT_SHAPE_exchange_many : SHUNT_SHAPE_exchange8, SHUNT_KOP_COPY, copy_type(l->align));
	for (size_t from = 0; from < longest && !err; from += room) {
		struct shunt_role *roles = many ? work->args.many.role : work->args.few.role;
		struct shunt_message *messages = many ? work->args.many.message : work->args.few.message;

		memset(roles, 0, SHUNT_MAX_ROLES * sizeof(*roles));
		unsigned n = fill_roles(scope, l, folds, from, room, &work->args.k, roles, messages, work);
		memset(&messages[n], 0, (max - n) * sizeof(*messages));
		work->args.k.check = issue->base->check;
		if (p2p)
			work->args.k.check.what = issue->check ? SHUNT_CHECK_MESSAGES : 0;
		err = issue->emit(issue->ctx, work);
	}
	if (many)
		free(work);
	return err;
}

static int exchange_issue(const struct shunt_issue *issue, const struct shunt_pick *pick, const struct shunt_coll *const *calls, size_t ncalls)
{
	const struct shunt_coll *c = calls[0];
	/* One rank by itself has nothing to fold, unless it scales. */
	bool folds = shunt_kind_reduces(c->kind) && (issue->scope->nranks > 1 || c->redop == SHUNT_PREMUL);
	struct shunt_message few[SHUNT_FEW_MESSAGES];
	struct lists l = { .rank = issue->base->rank };
	size_t total = 0;
	int err;

	for (size_t i = 0; i < ncalls; i++)
		add_call(&l, issue->scope, calls[i]);
	for (unsigned i = 0; i < LISTS; i++) {
		l.first[i] = total;
		total += l.count[i];
	}
	if (!total)
		return 0; /* this rank has no part in it */
	l.message = total <= SHUNT_FEW_MESSAGES ? few : malloc(total * sizeof(*l.message));
	if (!l.message)
		return -ENOMEM;
	memset(l.count, 0, sizeof(l.count));
	l.self_sent = l.self_taken = 0;
	for (size_t i = 0; i < ncalls; i++)
		add_call(&l, issue->scope, calls[i]);
	err = emit_lists(issue, pick, &l, folds, shunt_kind_is_p2p(c->kind), total);
	if (l.message != few)
		free(l.message);
	return err;
}

#define SHAPES { SHUNT_SHAPE_exchange2, SHUNT_SHAPE_exchange4, SHUNT_SHAPE_exchange8 }
#define COPY(kind, doc) { "exchange", doc, kind, SHUNT_FUSE_COPY, SHAPES, { 0 }, NULL, exchange_issue }
#define FOLD(kind, doc) { "exchange", doc, kind, SHUNT_FUSE_FOLD, SHAPES, { 0 }, NULL, exchange_issue }
const struct shunt_algo shunt_exchange_algos[] = {
	COPY(SHUNT_ALLGATHER, "every rank sends its part to all"),
	FOLD(SHUNT_REDUCESCATTER, "every rank sends part r to rank r, which folds what comes in rank order"),
	COPY(SHUNT_ALLTOALL, "every rank sends part r to rank r"),
	COPY(SHUNT_BROADCAST, "the root sends to all"),
	FOLD(SHUNT_REDUCE, "all send to the root, which folds in rank order"),
	COPY(SHUNT_GATHER, "all send to the root"),
	COPY(SHUNT_SCATTER, "the root sends part r to rank r"),
	COPY(SHUNT_SEND, "the sender pushes, the receiver takes"),
	{ 0 },
};

const struct shunt_algo shunt_local_algo = {
	"local", "one rank by itself: copies", SHUNT_NKINDS, SHUNT_FUSE_NONE,
	{ SHUNT_SHAPE_exchange8, SHUNT_SHAPE_exchange8, SHUNT_SHAPE_exchange8 }, { 0 }, NULL, exchange_issue,
};
