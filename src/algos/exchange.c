/* SPDX-License-Identifier: MIT */
/*
 * The calls that an exchange of parts makes: who sends which part to whom, and what becomes of what comes in.
 * "exchange" moves them in lines, "chunks" in chunks: kernels/exchange.h, kernels/chunks.h. Calls of both may share a
 * launch. "relay" moves lines, and some ranks pass on what comes in.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "algos/algos.h"

/*
 * This rank's messages, one list for each thing that it may do. Peers are counted from this rank on, so that ranks do
 * not all begin with the same one.
 */
enum { SEND_TO = 0, TAKE_FROM = SHUNT_KARGS_MAX_RANKS, RELAY = 2 * SHUNT_KARGS_MAX_RANKS, OWN, LISTS };

/* An all-reduce among more than two ranks takes two launches, and a relay has one of its own. */
enum step { FIRST, SECOND, RELAYED };

struct entry {
	struct shunt_message message;
	struct entry *next;
};

struct ends {
	struct entry *first, *last;
};

struct lists {
	uint32_t used; /* a bit for each list that has messages */
	struct ends list[LISTS];
	struct entry *entries; /* room for the messages of all lists, in order of issue */
	size_t n;
	uint64_t align;        /* all addresses and sizes, or-ed */
	uint64_t how;          /* of the call's messages to and from others: SHUNT_IN_CHUNKS or 0 */
	bool chunks;           /* whether there are messages in chunks */
	int ahead;             /* of messages to ourselves: so many more sends than receives, or, below 0, fewer */
	struct entry *waiting; /* ... the first of those that the other kind is to meet */
	int rank;
	int root;       /* of what is relayed */
	uint32_t flags; /* of the kernel, more than the pick's */
	enum step step;
};

static struct entry *add(struct lists *l, unsigned list, const void *from, void *to, uint64_t bytes)
{
	struct entry *e = &l->entries[l->n++];
	struct ends *ends = &l->list[list];

	*e = (struct entry){ .message = { .from = from, .to = to, .bytes = bytes } };
	l->align |= (uintptr_t)from | (uintptr_t)to | bytes;
	if (ends->last)
		ends->last->next = e;
	else
		ends->first = e;
	ends->last = e;
	l->used |= 1u << list;
	return e;
}

/* What leaves this rank, or is made of what comes in. */
static void add_moving(struct lists *l, unsigned list, const void *from, void *to, uint64_t bytes)
{
	add(l, list, from, to, bytes)->message.bytes |= l->how;
	l->chunks |= l->how != 0;
}

static unsigned distance(const struct lists *l, int peer)
{
	return (unsigned)(peer - l->rank) % SHUNT_KARGS_MAX_RANKS;
}

static void add_send(struct lists *l, int peer, const void *from, uint64_t bytes)
{
	if (peer != l->rank)
		add_moving(l, SEND_TO + distance(l, peer), from, NULL, bytes);
}

static void add_take(struct lists *l, int peer, void *to, uint64_t bytes)
{
	if (peer != l->rank)
		add_moving(l, TAKE_FROM + distance(l, peer), NULL, to, bytes);
}

static void add_copy(struct lists *l, const void *from, void *to, uint64_t bytes)
{
	if (from != to)
		add(l, OWN, from, to, bytes);
}

/* A message to ourselves: the i-th send meets the i-th receive, whichever was issued first. */
static void add_self(struct lists *l, const void *from, void *to, uint64_t bytes)
{
	struct entry *e = l->waiting;

	if (from ? l->ahead < 0 : l->ahead > 0) {
		struct shunt_message *m = &e->message;

		l->align |= (uintptr_t)from | (uintptr_t)to | bytes;
		m->from = from ? from : m->from;
		m->to = to ? to : m->to;
		m->bytes = bytes < m->bytes ? bytes : m->bytes; /* NCCL takes two sizes without a word */
		l->waiting = e->next;
	} else {
		e = add(l, OWN, from, to, bytes);
		if (!l->ahead)
			l->waiting = e;
	}
	l->ahead += from ? 1 : -1;
}

static char *at(const void *base, uint64_t offset)
{
	return (char *)(uintptr_t)base + offset;
}

/*
 * An all-reduce takes two launches, a reduce-scatter and an all-gather of parts that differ by a line at most. No more
 * of the input is read when the second begins, so the output may lie there. One rank has only the first; and so have
 * two, each of which sends everything to the other and folds it: the same bytes on the link, and the pipeline is filled
 * once.
 */
static void add_allreduce(struct lists *l, const struct shunt_scope *scope, const struct shunt_coll *c, uint64_t bytes)
{
	unsigned n = (unsigned)scope->nranks;
	uint64_t first, last, own, own_end;

	if (n == 2) {
		add_send(l, 1 - l->rank, c->send, bytes);
		add_moving(l, OWN, c->send, c->recv, bytes);
		if (shunt_overlap((uintptr_t)c->send, bytes, (uintptr_t)c->recv, bytes))
			l->flags |= SHUNT_K_OVER_SENT;
		return;
	}
	shunt_share(0, bytes, (unsigned)l->rank, n, &own, &own_end);
	if (own < own_end && l->step == FIRST)
		add_moving(l, OWN, at(c->send, own), at(c->recv, own), own_end - own);
	for (unsigned p = 0; p < n; p++) {
		shunt_share(0, bytes, p, n, &first, &last);
		if (first < last && l->step == FIRST)
			add_send(l, (int)p, at(c->send, first), last - first);
		if (first < last && l->step == SECOND)
			add_take(l, (int)p, at(c->recv, first), last - first);
		if (own < own_end && l->step == SECOND)
			add_send(l, (int)p, at(c->recv, own), own_end - own);
	}
}

/* The same part to everybody, and a copy for ourselves. */
static void add_send_all(struct lists *l, const struct shunt_scope *scope, const void *from, void *to, uint64_t bytes)
{
	for (int p = 0; p < scope->nranks; p++)
		add_send(l, p, from, bytes);
	add_copy(l, from, to, bytes);
}

/*
 * A broadcast in two hops: each rank but the root takes a share from the root and passes it on to the others, so that
 * the root's link carries the message once.
 */
static void add_relays(struct lists *l, const struct shunt_scope *scope, const struct shunt_coll *c, uint64_t bytes)
{
	bool root = l->rank == c->root;

	l->root = c->root;
	for (int p = 0; p < scope->nranks; p++) {
		uint64_t first, last;

		shunt_share(0, bytes, (unsigned)(p - (p > c->root)), (unsigned)scope->nranks - 1, &first, &last);
		if (p == c->root || first == last)
			continue;
		if (p == l->rank)
			add_moving(l, RELAY, NULL, at(c->recv, first), last - first);
		else if (root)
			add_send(l, p, at(c->send, first), last - first);
		else
			add_take(l, p, at(c->recv, first), last - first);
	}
	if (root)
		add_copy(l, c->send, c->recv, bytes);
}

static void add_message(struct lists *l, const struct shunt_coll *c)
{
	uint64_t bytes = shunt_coll_bytes(c);
	bool sends = c->kind == SHUNT_SEND;

	if (!bytes)
		return; /* both ends know that nothing comes */
	if (c->root == l->rank)
		add_self(l, sends ? c->send : NULL, sends ? NULL : c->recv, bytes);
	else if (sends)
		add_send(l, c->root, c->send, bytes);
	else
		add_take(l, c->root, c->recv, bytes);
}

/* What a collective asks of this rank: at most 2n - 1 messages of n ranks. */
static void add_call(struct lists *l, const struct shunt_scope *scope, const struct shunt_coll *c)
{
	uint64_t part = shunt_coll_bytes(c);
	int n = scope->nranks, rank = l->rank;
	bool root = rank == c->root;

	if (l->step == RELAYED) {
		add_relays(l, scope, c, part);
		return;
	}
	switch (c->kind) {
	case SHUNT_ALLGATHER:
		add_send_all(l, scope, c->send, at(c->recv, rank * part), part);
		for (int p = 0; p < n; p++)
			add_take(l, p, at(c->recv, p * part), part);
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
		add_send_all(l, scope, c->send, c->recv, part);
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
		add_moving(l, OWN, at(c->send, rank * part), c->recv, part);
		break;
	case SHUNT_REDUCE:
		if (root)
			add_moving(l, OWN, c->send, c->recv, part);
		else
			add_send(l, c->root, c->send, part);
		break;
	case SHUNT_ALLREDUCE:
		add_allreduce(l, scope, c, part);
		break;
	default:
		break;
	}
}

/* What a launch may have. */
struct room {
	unsigned blocks, warps; /* at most, and warps of a block beside a courier */
	unsigned roles;         /* there can be so many */
	unsigned copying; /* blocks that only copy own parts, if there are couriers: as long as the others have room for
	                     everything else */
	unsigned sending; /* chunks by bulk copies: blocks that send; SHUNT_BULK_TURNS times as many take or fold. 0:
	                     not so */
};

/*
 * Blocks that send by bulk copies, and that copy own parts beside them. On an H200 a block sends 44 GB/s and copies 48;
 * to take and to fold takes two for each. More than these were little faster alone and slower beside a program's
 * kernels; below the least, chunks without bulk copies are faster. What training gathers and scatters layer by layer
 * beside its computation gets the least, to parts of so many bytes: 1 to 4 % slower alone, and a step is over sooner
 * (docs/performance.md).
 */
#define BULK_SENDING 12u
#define BULK_SENDING_LEAST 8u
#define BULK_LAYER (256u << 20)
#define BULK_COPYING 8u

static struct room room_of(const struct shunt_scope *scope, bool folds)
{
	/* On the sim few: enough of them for a role each between two ranks, too few among more. */
	unsigned n = (unsigned)scope->nranks, most = !scope->sim ? shunt_max_blocks(scope) : n == 2 ? 4 : 2;
	struct room r = { .blocks = most, .roles = folds ? n : 2 * n - 1 };

	if (scope->max_ctas && (unsigned)scope->max_ctas < most)
		r.blocks = (unsigned)scope->max_ctas;
	r.warps = shunt_max_warps(scope, r.blocks, r.roles + r.blocks) - 1;
	if (folds || n < 2)
		return r;
	r.copying = scope->sim ? 1 : r.blocks / r.roles;
	if (r.copying > 2 * SHUNT_CHUNKS_SIDE) /* two roles share the others as clusters, too */
		r.copying -= r.copying % (2 * SHUNT_CHUNKS_SIDE);
	if ((r.blocks - r.copying) * r.warps < r.roles - 1)
		r.copying = 0;
	return r;
}

static unsigned most_bulk_sending(const struct shunt_coll *first)
{
	bool layer = first->kind == SHUNT_ALLGATHER || first->kind == SHUNT_REDUCESCATTER;

	return layer && shunt_coll_bytes(first) <= BULK_LAYER ? BULK_SENDING_LEAST : BULK_SENDING;
}

/*
 * Shares the blocks out for chunks that are sent by bulk copies instead, if they are enough for that; for clusters, if
 * there can be whole ones. The same on all ranks.
 */
static void make_bulk_room(const struct shunt_scope *scope, const struct shunt_coll *first, bool folds, struct room *r)
{
	const unsigned parts = 1 + SHUNT_BULK_TURNS;
	unsigned copying = folds ? 0 :
	    scope->sim           ? 1 :
	                           BULK_COPYING,
	         sending = r->blocks > copying ? (r->blocks - copying) / parts : 0;
	unsigned most = most_bulk_sending(first);

	if (sending > most)
		sending = most;
	if (!scope->sim)
		sending -= sending % SHUNT_CHUNKS_SIDE;
	if (sending < (scope->sim ? 1 : BULK_SENDING_LEAST))
		return;
	r->sending = sending;
	r->copying = copying;
}

/*
 * Channels for each of so many roles: a block's warps have one role, if there are enough blocks (chunks_assign() of
 * kernels/chunks.h).
 */
static unsigned channels_of(unsigned blocks, unsigned warps, unsigned roles)
{
	/* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): nobody asks for no roles */
	return blocks >= roles ? blocks / roles * warps : blocks * warps / roles;
}

/*
 * Channels of a pair that a call may use for messages in lines or in chunks: the rings that there are, and the warps
 * that the user allows. The same on all ranks. A launch with both has the chunks' blocks.
 */
static unsigned max_channels(const struct shunt_scope *scope, const struct room *r, bool chunks)
{
	unsigned max = chunks ? SHUNT_CHUNKS_PER_PEER(scope->nranks) : SHUNT_XCHG_PER_PEER(scope->nranks);

	if (scope->max_channels && max > scope->max_channels)
		max = scope->max_channels;
	/*
	 * Every role needs its warps, and one block has enough for a courier and one channel of each of the 15 roles of
	 * 8 ranks.
	 */
	if (r->copying && max > channels_of(r->blocks - r->copying, r->warps, r->roles - 1))
		max = channels_of(r->blocks - r->copying, r->warps, r->roles - 1);
	if (!(r->copying && chunks) && max > channels_of(r->blocks, r->warps, r->roles))
		max = channels_of(r->blocks, r->warps, r->roles);
	return scope->sim && max > 2 ? 2 : max;
}

/* ... for messages in chunks by bulk copies: as many for every warp that sends. */
static unsigned max_bulk_channels(const struct shunt_scope *scope, const struct room *r)
{
	unsigned max = scope->sim ? SHUNT_BULK_TURNS : SHUNT_CHUNKS_PER_PEER(scope->nranks);

	if (scope->max_channels && max > scope->max_channels)
		max = scope->max_channels;
	if (max > r->sending * r->warps * SHUNT_BULK_TURNS)
		max = r->sending * r->warps * SHUNT_BULK_TURNS;
	return max < SHUNT_BULK_TURNS ? max : max - max % SHUNT_BULK_TURNS;
}

static uint64_t units_of(uint64_t bytes)
{
	uint64_t unit = bytes & SHUNT_IN_CHUNKS ? SHUNT_CHUNK : SHUNT_UNIT_DATA;

	return ((bytes & ~SHUNT_IN_CHUNKS) + unit - 1) / unit;
}

/* Blocks of kernels of chunks.cu and bulk.cu have a warp more, their courier. */
static bool has_couriers(unsigned kernel)
{
	unsigned shape = SHUNT_SHAPE_OF(kernel);

	return shape >= SHUNT_SHAPE_chunks2 && shape <= SHUNT_SHAPE_bulk_many;
}

/*
 * Blocks and threads for so many roles of so many channels. apart: the role behind them that has blocks of its own
 * beside these, or NULL. Warps of one channel stand side by side in lines; those of one role do so in blocks with
 * couriers.
 */
static void spread(const struct shunt_scope *scope, const struct room *r, struct shunt_role *roles, unsigned nroles,
    unsigned channels, struct shunt_role *apart, struct shunt_work *work)
{
	unsigned copying = apart ? r->copying : 0, blocks = r->blocks - copying;

	if (!has_couriers(work->kernel)) {
		shunt_spread(scope, (uint64_t)nroles * channels, blocks, r->warps + 1, work);
		return;
	}
	if (!nroles) { /* nothing but own parts */
		shunt_spread(scope, UINT64_MAX, blocks, r->warps, work);
		work->blocks = 0;
	} else if (blocks < nroles) {
		shunt_spread(scope, (uint64_t)nroles * channels, blocks, r->warps, work);
	} else {
		shunt_spread(scope, channels, blocks / nroles, r->warps, work);
		for (unsigned i = 0; i < nroles; i++)
			roles[i].blocks = (uint8_t)work->blocks;
		work->blocks *= nroles;
	}
	if (apart) {
		apart->blocks = (uint8_t)copying;
		apart->channels = (uint16_t)(copying * work->threads / 32);
	}
	work->blocks += copying;
	work->threads += 32;
}

/* Blocks of a role in a launch whose chunks are sent by bulk copies, at most, and warps that it has work for. */
static unsigned bulk_blocks(const struct room *r, const struct shunt_role *role)
{
	return role->what == SHUNT_ROLE_SEND ? r->sending :
	    role->what == SHUNT_ROLE_COPY    ? r->copying :
	                                       SHUNT_BULK_TURNS * r->sending;
}

static unsigned bulk_warps(const struct room *r, const struct shunt_kargs *k, const struct shunt_role *role)
{
	unsigned most = k->chunk_channels;

	if (role->what == SHUNT_ROLE_COPY)
		most = r->copying * r->warps;
	else if (role->what == SHUNT_ROLE_SEND && most >= SHUNT_BULK_TURNS)
		most /= SHUNT_BULK_TURNS;
	return role->channels < most ? role->channels : most;
}

static unsigned divide_up(unsigned a, unsigned b)
{
	/*
	 * NOLINTNEXTLINE(clang-analyzer-core.DivideZero): every role that there can be has blocks, and every block
	 * warps
	 */
	return (a + b - 1) / b;
}

/* The same as spread() for chunks in bulk copies: blocks for each role, of as many warps as the one that needs most. */
static void spread_bulk(const struct room *r, struct shunt_role *roles, unsigned nroles, struct shunt_work *work)
{
	unsigned warps = 1, blocks = 0;

	for (unsigned i = 0; i < nroles; i++) {
		unsigned each;

		roles[i].channels = (uint16_t)bulk_warps(r, &work->args.k, &roles[i]);
		each = divide_up(roles[i].channels, bulk_blocks(r, &roles[i]));
		warps = each > warps ? each : warps;
	}
	for (unsigned i = 0; i < nroles; i++) {
		roles[i].blocks = (uint8_t)divide_up(roles[i].channels, warps);
		blocks += roles[i].blocks;
	}
	work->blocks = blocks;
	work->threads = (warps + 1) * 32;
	work->cluster = 0;
	work->shared = SHUNT_BULK_BYTES(warps);
}

/* May the launch come as clusters, with one role each? 0: not. */
static unsigned cluster_of(const struct shunt_role *roles, unsigned nroles)
{
	unsigned all = 0;

	for (unsigned i = 0; i < nroles; i++)
		all |= roles[i].blocks;
	return all && all % SHUNT_CHUNKS_SIDE == 0 ? SHUNT_CHUNKS_SIDE : 0;
}

static unsigned role_of(unsigned list, bool folds)
{
	if (list < RELAY)
		return list < TAKE_FROM ? SHUNT_ROLE_SEND : SHUNT_ROLE_TAKE;
	return list == RELAY ? SHUNT_ROLE_RELAY : folds ? SHUNT_ROLE_FOLD : SHUNT_ROLE_COPY;
}

/*
 * A role for each list that has messages left, and the next ones of these, at most `room`; returns the number of
 * messages.
 */
static unsigned fill_roles(const struct shunt_scope *scope, const struct room *r, struct lists *l, bool folds,
    size_t room, struct shunt_kargs *k, struct shunt_role *roles, struct shunt_message *messages,
    struct shunt_work *work)
{
	bool copies_apart = has_couriers(work->kernel) && r->copying && (l->used >> OWN & 1);
	unsigned nroles = 0, nmessages = 0, most = 0;

	for (uint32_t left = l->used; left; left &= left - 1) {
		unsigned list = (unsigned)__builtin_ctz(left), first = nmessages, channels = 0;
		struct entry *e = l->list[list].first;

		for (; e && nmessages - first < room; e = e->next) {
			uint64_t bytes = e->message.bytes, units = units_of(bytes);
			unsigned limit = bytes & SHUNT_IN_CHUNKS ? k->chunk_channels : k->channels,
			         uses = units < limit ? (unsigned)units : limit;

			messages[nmessages++] = e->message;
			if (uses > channels)
				channels = uses;
		}
		l->list[list].first = e;
		if (!e)
			l->used &= ~(1u << list);
		roles[nroles++] = (struct shunt_role){
			.what = (uint8_t)role_of(list, folds),
			.peer = (uint8_t)(list < RELAY ? (list + (unsigned)l->rank) % SHUNT_KARGS_MAX_RANKS :
			                                 (unsigned)l->root),
			.channels = (uint16_t)channels,
			.first = (uint16_t)first,
			.count = (uint16_t)(nmessages - first),
		};
		if (channels > most && !(list == OWN && copies_apart))
			most = channels;
	}
	k->roles = (uint16_t)nroles;
	if (r->sending)
		spread_bulk(r, roles, nroles, work);
	else
		spread(scope, r, roles, nroles - copies_apart, most, copies_apart ? &roles[nroles - 1] : NULL, work);
	/*
	 * Where the GPU puts single blocks is worth 310 to 360 GB/s between two ranks, and not the same in two
	 * processes; clusters are at the upper end, of 4 blocks more than of 8. Among more ranks it was not measured.
	 */
	if (l->chunks && scope->nranks == 2)
		work->cluster = cluster_of(roles, nroles);
	return nmessages;
}

enum shunt_dtype shunt_copy_type(uint64_t align)
{
	return align & 1 ? SHUNT_U8 :
	    align & 2    ? SHUNT_F16 :
	    align & 4    ? SHUNT_U32 :
	    align & 8    ? SHUNT_U64 :
	                   SHUNT_I64 /* 16 bytes */;
}

static enum shunt_shape copy_shape(bool chunks, bool many)
{
	if (chunks)
		return many ? SHUNT_SHAPE_chunks_many : SHUNT_SHAPE_chunks8;
	return many ? SHUNT_SHAPE_exchange_many : SHUNT_SHAPE_exchange8;
}

/*
 * Are chunks of such calls sent by bulk copies? Measured between two ranks, and made for the types that training sums.
 * What comes from a root or goes to one is over 2 to 3 us sooner without. The same on all ranks.
 */
static bool uses_bulk(const struct shunt_scope *scope, enum shunt_kind kind, unsigned kernel)
{
	if (!scope->bulk || scope->nranks != 2)
		return false;
	switch (kind) {
	case SHUNT_ALLREDUCE:
	case SHUNT_REDUCESCATTER:
		return SHUNT_SHAPE_OF(kernel) == SHUNT_SHAPE_chunks2;
	case SHUNT_ALLGATHER:
	case SHUNT_ALLTOALL:
	case SHUNT_SEND:
	case SHUNT_RECV:
		return true;
	default:
		return false;
	}
}

/* The kernel that does the same by bulk copies. */
static unsigned bulk_kernel(unsigned kernel)
{
	unsigned shape = SHUNT_SHAPE_OF(kernel), to;

	to = shape == SHUNT_SHAPE_chunks2 ? SHUNT_SHAPE_bulk2 :
	    shape == SHUNT_SHAPE_chunks8  ? SHUNT_SHAPE_bulk :
	                                    SHUNT_SHAPE_bulk_many;
	return kernel + SHUNT_KERNEL(to, 0, 0) - SHUNT_KERNEL(shape, 0, 0);
}

/*
 * Is every role one message, which is one batch on each of its channels? Judged by each rank for itself: what is on the
 * wire is the same.
 */
static bool is_one_batch(const struct shunt_kargs_few *few)
{
	const struct shunt_kargs *k = &few->k;

	for (unsigned i = 0; i < k->roles; i++) {
		const struct shunt_role *role = &few->role[i];

		if (role->count != 1 || role->what == SHUNT_ROLE_RELAY ||
		    units_of(few->message[role->first].bytes) > k->channels * SHUNT_XCHG_BATCH)
			return false;
	}
	return true;
}

/* first: of the calls, which decides for all. */
static int emit_lists(const struct shunt_issue *issue, const struct shunt_pick *pick, struct lists *l, bool folds,
    const struct shunt_coll *first)
{
	const struct shunt_scope *scope = issue->scope;
	bool many = l->n > SHUNT_FEW_MESSAGES && !folds;
	_Alignas(struct shunt_work) char small[offsetof(struct shunt_work, args) + sizeof(struct shunt_kargs_few)];
	struct shunt_work *work = many ? malloc(sizeof(*work)) : (struct shunt_work *)small;
	size_t max = many ? SHUNT_MANY_MESSAGES : SHUNT_FEW_MESSAGES,
	       room = l->n > max ? max / (unsigned)__builtin_popcount(l->used) : max;
	struct room r = room_of(scope, folds);
	int err = 0;

	if (!work)
		return -ENOMEM;
	work->args.k = *issue->base;
	work->args.k.channels = (uint16_t)max_channels(scope, &r, false);
	work->args.k.flags = pick->flags | l->flags;
	work->args.k.scalar = pick->scalar;
	if (folds)
		work->kernel = pick->kernel;
	else
		work->kernel = SHUNT_KERNEL(copy_shape(l->chunks, many), SHUNT_KOP_COPY, shunt_copy_type(l->align));
	if (l->chunks && uses_bulk(scope, first->kind, work->kernel))
		make_bulk_room(scope, first, folds, &r);
	if (r.sending)
		work->kernel = bulk_kernel(work->kernel);
	if (l->chunks)
		work->args.k.chunk_channels =
		    (uint16_t)(r.sending ? max_bulk_channels(scope, &r) : max_channels(scope, &r, true));
	while (l->used && !err) {
		struct shunt_role *roles = many ? work->args.many.role : work->args.few.role;
		struct shunt_message *messages = many ? work->args.many.message : work->args.few.message;

		memset(roles, 0, SHUNT_MAX_ROLES * sizeof(*roles));
		unsigned n = fill_roles(scope, &r, l, folds, room, &work->args.k, roles, messages, work);
		memset(&messages[n], 0, (max - n) * sizeof(*messages));
		if (work->kernel == SHUNT_KERNEL(SHUNT_SHAPE_exchange8, SHUNT_KOP_COPY, SHUNT_I64) &&
		    is_one_batch(&work->args.few)) {
			work->kernel = SHUNT_KERNEL(SHUNT_SHAPE_exchange_one, SHUNT_KOP_COPY, SHUNT_I64);
			work->args.k.per_role = (65536u + work->args.k.roles - 1) / work->args.k.roles;
		}
		work->args.k.check = issue->base->check;
		if (shunt_kind_is_p2p(first->kind))
			work->args.k.check.what = issue->check ? SHUNT_CHECK_MESSAGES : 0;
		err = issue->emit(issue->ctx, work);
	}
	if (many)
		free(work);
	return err;
}

static int exchange_launch(const struct shunt_issue *issue, const struct shunt_pick *picks,
    const struct shunt_coll *const *calls, size_t ncalls, bool folds, enum step step)
{
	const struct shunt_scope *scope = issue->scope;
	const struct shunt_pick *pick = picks; /* of what reduces: the kernel that can do all, if one is for chunks */
	bool p2p = shunt_kind_is_p2p(calls[0]->kind);
	size_t most = p2p ? ncalls : ncalls * (2 * (size_t)scope->nranks - 1);
	struct entry few[SHUNT_FEW_MESSAGES];
	struct lists l = { .entries = few, .rank = issue->base->rank, .step = step };
	int err = 0;

	if (most > SHUNT_FEW_MESSAGES)
		l.entries = malloc(most * sizeof(*l.entries));
	if (!l.entries)
		return -ENOMEM;
	for (size_t i = 0; i < ncalls; i++) {
		l.how = picks[i].algo->how;
		if (p2p)
			add_message(&l, calls[i]);
		else
			add_call(&l, scope, calls[i]);
		if (folds && has_couriers(picks[i].kernel))
			pick = &picks[i];
	}
	if (l.n) /* else this rank has no part in it */
		err = emit_lists(issue, pick, &l, folds, calls[0]);
	if (l.entries != few)
		free(l.entries);
	return err;
}

static int relay(const struct shunt_issue *issue, const struct shunt_pick *pick, const struct shunt_coll *coll)
{
	return exchange_launch(issue, pick, &coll, 1, false, RELAYED);
}

/*
 * The only one of the calls that goes in two hops; ncalls: none. Of several with roots of their own, one hop is the
 * better way: each link carries what it would carry anyway.
 */
static size_t find_alone(const struct shunt_issue *issue, const struct shunt_pick *picks, size_t ncalls)
{
	size_t found = ncalls;

	for (size_t i = 0; i < ncalls && issue->scope->nranks > 2; i++)
		if (picks[i].algo->alone) {
			if (found < ncalls)
				return ncalls;
			found = i;
		}
	return found;
}

int shunt_exchange_issue(const struct shunt_issue *issue, const struct shunt_pick *picks,
    const struct shunt_coll *const *calls, size_t ncalls)
{
	const struct shunt_coll *c = calls[0];
	int n = issue->scope->nranks;
	/* One rank by itself has nothing to fold, unless it scales. */
	bool folds = shunt_kind_reduces(c->kind) && (n > 1 || c->redop == SHUNT_PREMUL);
	size_t alone = find_alone(issue, picks, ncalls), next = alone + 1;
	int err = exchange_launch(issue, picks, calls, alone, folds, FIRST);

	if (!err && c->kind == SHUNT_ALLREDUCE && n > 2)
		err = exchange_launch(issue, picks, calls, ncalls, false, SECOND);
	/* A relay's warp has the rings to many ranks, on which no other may send. */
	if (!err && alone < ncalls)
		err = picks[alone].algo->alone(issue, &picks[alone], calls[alone]);
	if (!err && next < ncalls)
		err = exchange_launch(issue, &picks[next], &calls[next], ncalls - next, folds, FIRST);
	return err;
}

#define LINES { SHUNT_SHAPE_exchange2, SHUNT_SHAPE_exchange4, SHUNT_SHAPE_chunks8 } /* the last one can do both */
#define CHUNKS { SHUNT_SHAPE_chunks2, SHUNT_SHAPE_chunks4, SHUNT_SHAPE_chunks8 }
#define ROW(called, text, which, fuses, kernels, ...) \
	{ .name = called, \
		.doc = text, \
		.kind = which, \
		.fuse = fuses, \
		.shapes = kernels, \
		.issue = shunt_exchange_issue, \
		__VA_ARGS__ }
#define BOTH(kind, fuse, doc) \
	ROW("exchange", doc, kind, fuse, LINES), \
	    ROW("chunks", doc ", in chunks", kind, fuse, CHUNKS, .how = SHUNT_IN_CHUNKS)
const struct shunt_algo shunt_exchange_algos[] = {
	BOTH(SHUNT_ALLGATHER, SHUNT_FUSE_COPY, "every rank sends its part to all"),
	BOTH(SHUNT_REDUCESCATTER, SHUNT_FUSE_FOLD,
	    "every rank sends part r to rank r, which folds what comes in rank order"),
	BOTH(SHUNT_ALLTOALL, SHUNT_FUSE_COPY, "every rank sends part r to rank r"),
	BOTH(SHUNT_BROADCAST, SHUNT_FUSE_COPY, "the root sends to all"),
	ROW("relay", "the root sends a share to each, and each passes its share on to the others", SHUNT_BROADCAST,
	    SHUNT_FUSE_COPY, LINES, .alone = relay, .among = SHUNT_AMONG_MORE),
	BOTH(SHUNT_REDUCE, SHUNT_FUSE_FOLD, "all send to the root, which folds in rank order"),
	ROW("twoshot",
	    "every rank sends part r to rank r, which folds what comes in rank order and sends it to the root",
	    SHUNT_REDUCE, SHUNT_FUSE_FOLD, LINES, .alone = shunt_reduce_in_two, .among = SHUNT_AMONG_MORE),
	BOTH(SHUNT_GATHER, SHUNT_FUSE_COPY, "all send to the root"),
	BOTH(SHUNT_SCATTER, SHUNT_FUSE_COPY, "the root sends part r to rank r"),
	BOTH(SHUNT_SEND, SHUNT_FUSE_COPY, "the sender pushes, the receiver takes"),
	ROW("chunks", "reduce-scatter and all-gather, in chunks; two ranks send each other everything", SHUNT_ALLREDUCE,
	    SHUNT_FUSE_NONE, CHUNKS, .how = SHUNT_IN_CHUNKS),
	{ 0 },
};

const struct shunt_algo shunt_local_algo = {
	.name = "local",
	.doc = "one rank by itself: copies",
	.kind = SHUNT_NKINDS,
	.fuse = SHUNT_FUSE_NONE,
	.shapes = { SHUNT_SHAPE_chunks8, SHUNT_SHAPE_chunks8, SHUNT_SHAPE_chunks8 },
	.issue = shunt_exchange_issue,
};
