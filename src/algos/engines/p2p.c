/* SPDX-License-Identifier: MIT */
/*
 * The p2p engine: calls that are made of messages between ranks. This file decides which part goes to which rank, and
 * how each rank uses the parts that come in.
 *
 * | algorithm | pieces on the wire                    |
 * |-----------|---------------------------------------|
 * | ll128     | LL128 slots (kernels/p2p.h)           |
 * | simple    | chunks (kernels/simple.h)             |
 * | pipelined | LL128 slots, which some ranks forward |
 *
 * Calls of ll128 and of simple may share a launch.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "algos/algos.h"

/*
 * This rank's messages, one list for each role and peer. Peers are counted from this rank on, so that ranks do not all
 * begin with the same one.
 */
enum { SEND_TO = 0, RECV_FROM = SHUNT_KARGS_MAX_RANKS, FORWARD = 2 * SHUNT_KARGS_MAX_RANKS, OWN, LISTS };

/* An all-reduce among more than two ranks takes two launches, and a pipelined broadcast has a launch of its own. */
enum step { FIRST, SECOND, PIPELINED };

struct entry {
	struct shunt_message message;
	struct entry *next;
};

struct ends {
	struct entry *first, *last;
};

struct lists {
	uint32_t used; /* a bit for each list with messages */
	struct ends list[LISTS];
	struct entry *entries; /* room for the messages of all lists, in order of enqueue */
	size_t n;
	uint64_t align;        /* all addresses and sizes, or-ed */
	uint64_t proto;        /* of the call's messages to and from peers: SHUNT_MESSAGE_SIMPLE or 0 */
	bool simple;           /* some messages are in chunks */
	int ahead;             /* messages to this rank itself: sends minus receives so far */
	struct entry *waiting; /* ... the first one without its counterpart */
	int rank;
	int root;       /* of a pipelined broadcast */
	uint32_t flags; /* of the kernel, in addition to the decision's */
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

/* A message to or from peers, or a reduction of data from peers: it has the call's protocol. */
static void add_moving(struct lists *l, unsigned list, const void *from, void *to, uint64_t bytes)
{
	add(l, list, from, to, bytes)->message.bytes |= l->proto;
	l->simple |= l->proto != 0;
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

static void add_recv(struct lists *l, int peer, void *to, uint64_t bytes)
{
	if (peer != l->rank)
		add_moving(l, RECV_FROM + distance(l, peer), NULL, to, bytes);
}

static void add_copy(struct lists *l, const void *from, void *to, uint64_t bytes)
{
	if (from != to)
		add(l, OWN, from, to, bytes);
}

/* A message to this rank itself: the i-th send goes to the i-th receive, whichever was issued first. */
static void add_self(struct lists *l, const void *from, void *to, uint64_t bytes)
{
	struct entry *e = l->waiting;

	if (from ? l->ahead < 0 : l->ahead > 0) {
		struct shunt_message *m = &e->message;

		l->align |= (uintptr_t)from | (uintptr_t)to | bytes;
		m->from = from ? from : m->from;
		m->to = to ? to : m->to;
		m->bytes = bytes < m->bytes ? bytes : m->bytes; /* NCCL accepts two sizes silently */
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
 * An all-reduce takes two launches, a reduce-scatter and an all-gather of parts that differ by one line at most. The
 * second launch reads no input, so the output may lie over the input. Two ranks have only the first launch: each sends
 * everything to the other and reduces it, which is the same number of bytes on the link and fills the pipeline once. A
 * single rank has only the first launch, too.
 */
static void add_allreduce(
    struct lists *l, const struct shunt_sel_key *sel_key, const struct shunt_coll *c, uint64_t bytes)
{
	unsigned n = (unsigned)sel_key->nranks;
	uint64_t first, last, own, own_end;

	if (n == 2) {
		add_send(l, 1 - l->rank, c->send, bytes);
		add_moving(l, OWN, c->send, c->recv, bytes);
		if (shunt_overlap((uintptr_t)c->send, bytes, (uintptr_t)c->recv, bytes))
			l->flags |= SHUNT_K_OVER_SENT_INPUT;
		return;
	}
	shunt_partition(0, bytes, (unsigned)l->rank, n, &own, &own_end);
	if (own < own_end && l->step == FIRST)
		add_moving(l, OWN, at(c->send, own), at(c->recv, own), own_end - own);
	for (unsigned p = 0; p < n; p++) {
		shunt_partition(0, bytes, p, n, &first, &last);
		if (first < last && l->step == FIRST)
			add_send(l, (int)p, at(c->send, first), last - first);
		if (first < last && l->step == SECOND)
			add_recv(l, (int)p, at(c->recv, first), last - first);
		if (own < own_end && l->step == SECOND)
			add_send(l, (int)p, at(c->recv, own), own_end - own);
	}
}

/*
 * A broadcast in two hops: each rank but the root receives a share from the root and forwards it to the others, so that
 * the root's link carries the message once.
 */
static void add_pipelined(
    struct lists *l, const struct shunt_sel_key *sel_key, const struct shunt_coll *c, uint64_t bytes)
{
	bool root = l->rank == c->root;

	l->root = c->root;
	for (int p = 0; p < sel_key->nranks; p++) {
		uint64_t first, last;

		shunt_partition(0, bytes, (unsigned)(p - (p > c->root)), (unsigned)sel_key->nranks - 1, &first, &last);
		if (p == c->root || first == last)
			continue;
		if (p == l->rank)
			add_moving(l, FORWARD, NULL, at(c->recv, first), last - first);
		else if (root)
			add_send(l, p, at(c->send, first), last - first);
		else
			add_recv(l, p, at(c->recv, first), last - first);
	}
	if (root)
		add_copy(l, c->send, c->recv, bytes);
}

static void add_message(struct lists *l, const struct shunt_coll *c)
{
	uint64_t bytes = shunt_coll_bytes(c);
	bool sends = c->kind == SHUNT_SEND;

	if (!bytes)
		return; /* both ends know that no data comes */
	if (c->root == l->rank)
		add_self(l, sends ? c->send : NULL, sends ? NULL : c->recv, bytes);
	else if (sends)
		add_send(l, c->root, c->send, bytes);
	else
		add_recv(l, c->root, c->recv, bytes);
}

/*
 * This rank's messages for a collective: at most 2n - 1 for n ranks. The collective's row says which ranks send and
 * receive, and which part of a buffer goes to or comes from which rank.
 */
static void add_call(struct lists *l, const struct shunt_sel_key *sel_key, const struct shunt_coll *c)
{
	uint64_t part = shunt_coll_bytes(c);
	bool root = l->rank == c->root, sends = shunt_kind_has_side(c->kind, SHUNT_SIDE_SEND, root),
	     receives = shunt_kind_has_side(c->kind, SHUNT_SIDE_RECV, root), reduces = shunt_kind_reduces(c->kind);

	if (l->step == PIPELINED) {
		add_pipelined(l, sel_key, c, part);
		return;
	}
	if (c->kind == SHUNT_ALLREDUCE) {
		add_allreduce(l, sel_key, c, part);
		return;
	}
	for (int p = 0; p < sel_key->nranks; p++) {
		if (sends && shunt_kind_has_side(c->kind, SHUNT_SIDE_RECV, p == c->root))
			add_send(l, p, at(c->send, shunt_kind_part_of(c->kind, SHUNT_SIDE_SEND, p) * part), part);
		if (receives && !reduces && shunt_kind_has_side(c->kind, SHUNT_SIDE_SEND, p == c->root))
			add_recv(l, p, at(c->recv, shunt_kind_part_of(c->kind, SHUNT_SIDE_RECV, p) * part), part);
	}
	if (!sends || !receives)
		return;

	const char *from = at(c->send, shunt_kind_part_of(c->kind, SHUNT_SIDE_SEND, l->rank) * part);
	char *to = at(c->recv, shunt_kind_part_of(c->kind, SHUNT_SIDE_RECV, l->rank) * part);

	if (reduces)
		add_moving(l, OWN, from, to, part);
	else
		add_copy(l, from, to, part);
}

/* Limits on a launch. */
struct room {
	const struct shunt_limits *limits;
	unsigned blocks, warps; /* at most; warps of a block without its proxy warp */
	unsigned roles;         /* at most */
	unsigned copying; /* blocks that only copy this rank's own parts, in kernels with proxy warps; 0 if the other
	                     blocks had no room for all other roles */
	unsigned sending; /* Simple by TMA: blocks that send; SHUNT_TMA_CHANNELS times as many receive or reduce. 0: no
	                     TMA */
};

/*
 * Blocks that send by TMA, and blocks that copy own parts at the same time. On an H200 a block sends 44 GB/s and copies
 * 48 GB/s; receiving and reducing take two blocks for each that sends. More blocks than these were little faster alone,
 * and slower next to a program's kernels; with fewer than TMA_SENDING_MIN, Simple without TMA is faster. Training
 * gathers and scatters layer by layer next to its computation: all-gathers and reduce-scatters of parts up to TMA_LAYER
 * get the least. They are 1 to 4 % slower alone, and a training step ends sooner (docs/kernels/tma.md).
 */
#define TMA_SENDING 12u
#define TMA_SENDING_MIN 8u
#define TMA_LAYER (256u << 20)
#define TMA_COPYING 8u

static struct room room_of(const struct shunt_limits *limits, bool reduces)
{
	const struct shunt_sel_key *sel_key = limits->key;
	/* The sim has few blocks: between two ranks enough for one role each, among more ranks too few. */
	unsigned n = (unsigned)sel_key->nranks,
	         most =
	             !sel_key->sim ? shunt_grid_max_blocks(limits) : shunt_grid_halve(limits->few_ctas, n == 2 ? 4 : 2);
	struct room r = { .limits = limits, .blocks = most, .roles = reduces ? n : 2 * n - 1 };

	if (limits->max_ctas && (unsigned)limits->max_ctas < most)
		r.blocks = (unsigned)limits->max_ctas;
	r.warps = shunt_grid_max_warps(limits, r.blocks, r.roles + r.blocks) - 1;
	if (reduces || n < 2)
		return r;
	r.copying = sel_key->sim ? 1 : r.blocks / r.roles;
	if (r.copying > 2 * SHUNT_CLUSTER_BLOCKS) /* so that two roles share the other blocks in whole clusters */
		r.copying -= r.copying % (2 * SHUNT_CLUSTER_BLOCKS);
	if ((r.blocks - r.copying) * r.warps < r.roles - 1)
		r.copying = 0;
	return r;
}

static unsigned max_tma_sending(const struct shunt_coll *first)
{
	bool layer = first->kind == SHUNT_ALLGATHER || first->kind == SHUNT_REDUCESCATTER;

	return layer && shunt_coll_bytes(first) <= TMA_LAYER ? TMA_SENDING_MIN : TMA_SENDING;
}

/*
 * Divides the blocks for Simple by TMA, if there are enough, in whole clusters except on the sim. The same on all
 * ranks.
 */
static void make_tma_room(
    const struct shunt_sel_key *sel_key, const struct shunt_coll *first, bool reduces, struct room *r)
{
	const unsigned parts = 1 + SHUNT_TMA_CHANNELS;
	unsigned copying = reduces ? 0 :
	    sel_key->sim           ? 1 :
	                             TMA_COPYING,
	         sending = r->blocks > copying ? (r->blocks - copying) / parts : 0;
	unsigned most = max_tma_sending(first);

	if (sending > most)
		sending = most;
	if (!sel_key->sim)
		sending -= sending % SHUNT_CLUSTER_BLOCKS;
	if (sending < (sel_key->sim ? 1 : TMA_SENDING_MIN))
		return;
	r->sending = sending;
	r->copying = copying;
}

/*
 * Channels for each role: all warps of a block have the same role, if there are enough blocks (simple_assign() of
 * kernels/simple.h).
 */
static unsigned channels_of(unsigned blocks, unsigned warps, unsigned roles)
{
	/* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): there is at least one role */
	return blocks >= roles ? blocks / roles * warps : blocks * warps / roles;
}

/*
 * Channels of a pair of ranks for messages in LL128 or Simple: limited by the rings, and by the warps that the user
 * allows. The same on all ranks. A launch with both protocols has Simple's blocks.
 */
static unsigned max_channels(const struct room *r, bool simple)
{
	const struct shunt_sel_key *sel_key = r->limits->key;
	unsigned max = simple ? SHUNT_SIMPLE_PER_PEER(sel_key->nranks) : SHUNT_P2P_PER_PEER(sel_key->nranks);

	if (sel_key->staged)
		max = (simple ? SHUNT_STAGED_SIMPLE_CHANNELS : SHUNT_STAGED_P2P_CHANNELS) /
		    ((unsigned)sel_key->nranks - 1);

	if (r->limits->max_channels && max > r->limits->max_channels)
		max = r->limits->max_channels;
	/*
	 * Every role needs its warps. One block has enough for a proxy warp and one channel of each of the 15 roles of
	 * 8 ranks.
	 */
	if (r->copying && max > channels_of(r->blocks - r->copying, r->warps, r->roles - 1))
		max = channels_of(r->blocks - r->copying, r->warps, r->roles - 1);
	if (!(r->copying && simple) && max > channels_of(r->blocks, r->warps, r->roles))
		max = channels_of(r->blocks, r->warps, r->roles);
	return sel_key->sim && max > 2 ? 2 : max;
}

/* The same for Simple by TMA: a warp that sends has SHUNT_TMA_CHANNELS of them. */
static unsigned max_tma_channels(const struct room *r)
{
	const struct shunt_sel_key *sel_key = r->limits->key;
	unsigned max = sel_key->sim ? SHUNT_TMA_CHANNELS : SHUNT_SIMPLE_PER_PEER(sel_key->nranks);

	if (r->limits->max_channels && max > r->limits->max_channels)
		max = r->limits->max_channels;
	if (max > r->sending * r->warps * SHUNT_TMA_CHANNELS)
		max = r->sending * r->warps * SHUNT_TMA_CHANNELS;
	return max < SHUNT_TMA_CHANNELS ? max : max - max % SHUNT_TMA_CHANNELS;
}

static uint64_t pieces_of(const struct shunt_sel_key *key, uint64_t bytes)
{
	uint64_t piece = bytes & SHUNT_MESSAGE_SIMPLE ? SHUNT_SIMPLE_CHUNK : shunt_slot_data(key);

	return ((bytes & ~SHUNT_MESSAGE_SIMPLE) + piece - 1) / piece;
}

/* True: the kernel is of simple.cu or tma.cu, where each block has one more warp, its proxy warp. */
static bool has_proxies(unsigned kernel)
{
	unsigned shape = SHUNT_SHAPE_OF(kernel);

	return shape >= SHUNT_SHAPE_simple2 && shape <= SHUNT_SHAPE_tma_many;
}

/*
 * Blocks and threads for nroles roles with so many channels each. apart: the next role, which has blocks of its own, or
 * NULL. In LL128 the warps of one channel are neighbours; with proxy warps the warps of one role are.
 */
static void grid_fit(const struct room *r, struct shunt_role *roles, unsigned nroles, unsigned channels,
    struct shunt_role *apart, struct shunt_work *work)
{
	const struct shunt_limits *limits = r->limits;
	unsigned copying = apart ? r->copying : 0, blocks = r->blocks - copying;

	if (!has_proxies(work->kernel)) {
		shunt_grid_fit(limits, (uint64_t)nroles * channels, blocks, r->warps + 1, work);
		return;
	}
	if (!nroles) { /* only own parts */
		shunt_grid_fit(limits, UINT64_MAX, blocks, r->warps, work);
		work->blocks = 0;
	} else if (blocks < nroles) {
		shunt_grid_fit(limits, (uint64_t)nroles * channels, blocks, r->warps, work);
	} else {
		shunt_grid_fit(limits, channels, blocks / nroles, r->warps, work);
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

/* With Simple by TMA: the most blocks of a role (tma_blocks), and the warps that it has work for (tma_warps). */
static unsigned tma_blocks(const struct room *r, const struct shunt_role *role)
{
	return role->what == SHUNT_ROLE_SEND ? r->sending :
	    role->what == SHUNT_ROLE_COPY    ? r->copying :
	                                       SHUNT_TMA_CHANNELS * r->sending;
}

static unsigned tma_warps(const struct room *r, const struct shunt_kargs *k, const struct shunt_role *role)
{
	unsigned most = k->simple_channels;

	if (role->what == SHUNT_ROLE_COPY)
		most = r->copying * r->warps;
	else if (role->what == SHUNT_ROLE_SEND && most >= SHUNT_TMA_CHANNELS)
		most /= SHUNT_TMA_CHANNELS;
	return role->channels < most ? role->channels : most;
}

static unsigned divide_up(unsigned a, unsigned b)
{
	/* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): every role has blocks, and every block has warps */
	return (a + b - 1) / b;
}

/* As grid_fit(), for Simple by TMA: blocks for each role, with as many warps as the role that needs most. */
static void grid_fit_tma(const struct room *r, struct shunt_role *roles, unsigned nroles, struct shunt_work *work)
{
	unsigned warps = 1, blocks = 0;

	for (unsigned i = 0; i < nroles; i++) {
		unsigned each;

		roles[i].channels = (uint16_t)tma_warps(r, &work->args.k, &roles[i]);
		each = divide_up(roles[i].channels, tma_blocks(r, &roles[i]));
		warps = each > warps ? each : warps;
	}
	for (unsigned i = 0; i < nroles; i++) {
		roles[i].blocks = (uint8_t)divide_up(roles[i].channels, warps);
		blocks += roles[i].blocks;
	}
	work->blocks = blocks;
	work->threads = (warps + 1) * 32;
	work->cluster = 0;
	work->shared = SHUNT_TMA_BYTES(warps);
	work->uncounted = false;
}

/* Blocks of a cluster, if every role's blocks are whole clusters; 0: no clusters. */
static unsigned cluster_of(const struct shunt_role *roles, unsigned nroles)
{
	unsigned all = 0;

	for (unsigned i = 0; i < nroles; i++)
		all |= roles[i].blocks;
	return all && all % SHUNT_CLUSTER_BLOCKS == 0 ? SHUNT_CLUSTER_BLOCKS : 0;
}

static unsigned role_of(unsigned list, bool reduces)
{
	if (list < FORWARD)
		return list < RECV_FROM ? SHUNT_ROLE_SEND : SHUNT_ROLE_RECV;
	return list == FORWARD ? SHUNT_ROLE_FORWARD : reduces ? SHUNT_ROLE_REDUCE : SHUNT_ROLE_COPY;
}

/* A launch that is being filled. */
struct launch {
	struct shunt_work *work;
	struct shunt_role *roles; /* both in the work's arguments */
	struct shunt_message *messages;
	size_t most; /* messages of one list */
	bool reduces;
};

/* Makes a role for each list with messages left. Returns the number of messages. */
static unsigned fill_roles(const struct room *r, struct lists *l, const struct launch *launch)
{
	struct shunt_work *work = launch->work;
	struct shunt_kargs *k = &work->args.k;
	struct shunt_role *roles = launch->roles;
	bool copies_apart = has_proxies(work->kernel) && r->copying && (l->used >> OWN & 1);
	unsigned nroles = 0, nmessages = 0, most = 0;

	for (uint32_t left = l->used; left; left &= left - 1) {
		unsigned list = (unsigned)__builtin_ctz(left), first = nmessages, channels = 0;
		struct entry *e = l->list[list].first;

		for (; e && nmessages - first < launch->most; e = e->next) {
			uint64_t bytes = e->message.bytes, pieces = pieces_of(r->limits->key, bytes);
			unsigned limit = bytes & SHUNT_MESSAGE_SIMPLE ? k->simple_channels : k->channels,
			         uses = pieces < limit ? (unsigned)pieces : limit;

			launch->messages[nmessages++] = e->message;
			if (uses > channels)
				channels = uses;
		}
		l->list[list].first = e;
		if (!e)
			l->used &= ~(1u << list);
		roles[nroles++] = (struct shunt_role){
			.what = (uint8_t)role_of(list, launch->reduces),
			.peer = (uint8_t)(list < FORWARD ? (list + (unsigned)l->rank) % SHUNT_KARGS_MAX_RANKS :
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
		grid_fit_tma(r, roles, nroles, work);
	else
		grid_fit(r, roles, nroles - copies_apart, most, copies_apart ? &roles[nroles - 1] : NULL, work);
	/*
	 * Between two ranks, single blocks get 310 to 360 GB/s, by where the GPU places them, which differs between
	 * processes. Clusters get the upper end, those of 4 blocks more than those of 8. Not measured among more ranks.
	 */
	if (l->simple && r->limits->key->nranks == 2)
		work->cluster = cluster_of(roles, nroles);
	return nmessages;
}

static enum shunt_shape copy_shape(bool simple, bool many)
{
	if (simple)
		return many ? SHUNT_SHAPE_simple_many : SHUNT_SHAPE_simple8;
	return many ? SHUNT_SHAPE_ll128_many : SHUNT_SHAPE_ll128_8;
}

/*
 * True: chunks of such calls are sent by TMA. That was measured between two ranks, and has kernels for the types that
 * training sums. Calls with a root end 2 to 3 us sooner without TMA. The same on all ranks.
 */
static bool uses_tma(const struct shunt_sel_key *sel_key, enum shunt_kind kind, unsigned kernel)
{
	if (!sel_key->tma || sel_key->staged || sel_key->nranks != 2)
		return false;
	switch (kind) {
	case SHUNT_ALLREDUCE:
	case SHUNT_REDUCESCATTER:
		return SHUNT_SHAPE_OF(kernel) == SHUNT_SHAPE_simple2;
	case SHUNT_ALLGATHER:
	case SHUNT_ALLTOALL:
	case SHUNT_SEND:
	case SHUNT_RECV:
		return true;
	default:
		return false;
	}
}

/* The kernel that does the same by TMA. */
static unsigned tma_kernel(unsigned kernel)
{
	unsigned shape = SHUNT_SHAPE_OF(kernel), to;

	to = shape == SHUNT_SHAPE_simple2 ? SHUNT_SHAPE_tma2 :
	    shape == SHUNT_SHAPE_simple8  ? SHUNT_SHAPE_tma :
	                                    SHUNT_SHAPE_tma_many;
	return kernel + SHUNT_KERNEL(to, 0, 0) - SHUNT_KERNEL(shape, 0, 0);
}

/*
 * True: every role is one message, and at most one batch on each of its channels. Each rank decides this for itself,
 * because the data on the wire is the same.
 */
static bool is_one_batch(const struct shunt_sel_key *key, const struct shunt_kargs_few *few)
{
	const struct shunt_kargs *k = &few->k;

	for (unsigned i = 0; i < k->roles; i++) {
		const struct shunt_role *role = &few->role[i];

		if (role->count != 1 || role->what == SHUNT_ROLE_FORWARD ||
		    pieces_of(key, few->message[role->first].bytes) > k->channels * SHUNT_P2P_BATCH)
			return false;
	}
	return true;
}

/* first: the first call, whose kind counts for all. */
static int emit_lists(const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decision, struct lists *l,
    bool reduces, const struct shunt_coll *first)
{
	const struct shunt_sel_key *sel_key = enqueue->sel_key;
	bool many = l->n > SHUNT_FEW_MESSAGES && !reduces;
	_Alignas(struct shunt_work) char small[offsetof(struct shunt_work, args) + sizeof(struct shunt_kargs_few)];
	struct shunt_work *work = many ? malloc(sizeof(*work)) : (struct shunt_work *)small;
	size_t max = many ? SHUNT_MANY_MESSAGES : SHUNT_FEW_MESSAGES,
	       room = l->n > max ? max / (unsigned)__builtin_popcount(l->used) : max;
	struct room r = room_of(&enqueue->limits, reduces);
	int err = 0;

	if (!work)
		return -ENOMEM;
	work->args.k = *enqueue->base;
	work->args.k.channels = (uint16_t)max_channels(&r, false);
	shunt_algo_set_op(&work->args.k, decision, first);
	work->args.k.flags |= l->flags;
	if (reduces)
		work->kernel = decision->kernel;
	else
		work->kernel = SHUNT_KERNEL(copy_shape(l->simple, many), SHUNT_KOP_COPY, shunt_copy_type(l->align));
	if (l->simple && uses_tma(sel_key, first->kind, work->kernel))
		make_tma_room(sel_key, first, reduces, &r);
	if (r.sending)
		work->kernel = tma_kernel(work->kernel);
	if (l->simple)
		work->args.k.simple_channels = (uint16_t)(r.sending ? max_tma_channels(&r) : max_channels(&r, true));
	while (l->used && !err) {
		const struct launch launch = { work, many ? work->args.many.role : work->args.few.role,
			many ? work->args.many.message : work->args.few.message, room, reduces };

		memset(launch.roles, 0, SHUNT_MAX_ROLES * sizeof(*launch.roles));
		unsigned n = fill_roles(&r, l, &launch);
		memset(&launch.messages[n], 0, (max - n) * sizeof(*launch.messages));
		if (work->kernel == SHUNT_KERNEL(SHUNT_SHAPE_ll128_8, SHUNT_KOP_COPY, SHUNT_I64) &&
		    is_one_batch(sel_key, &work->args.few)) {
			work->kernel = SHUNT_KERNEL(SHUNT_SHAPE_ll128_one, SHUNT_KOP_COPY, SHUNT_I64);
			work->args.k.per_role = (65536u + work->args.k.roles - 1) / work->args.k.roles;
		}
		work->args.k.check = enqueue->base->check;
		if (shunt_kind_is_p2p(first->kind))
			work->args.k.check.what = enqueue->check ? SHUNT_CHECK_MESSAGES : 0;
		err = enqueue->emit(enqueue->ctx, work);
	}
	if (many)
		free(work);
	return err;
}

static int p2p_launch(const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decisions,
    const struct shunt_coll *const *calls, size_t ncalls, bool reduces, enum step step)
{
	const struct shunt_sel_key *sel_key = enqueue->sel_key;
	const struct shunt_decision *decision =
	    decisions; /* for reductions: one with a kernel that can do all calls, which is Simple's if a call has it */
	bool p2p = shunt_kind_is_p2p(calls[0]->kind);
	size_t most = p2p ? ncalls : ncalls * (2 * (size_t)sel_key->nranks - 1);
	struct entry few[SHUNT_FEW_MESSAGES];
	struct lists l = { .entries = few, .rank = enqueue->base->rank, .step = step };
	int err = 0;

	if (most > SHUNT_FEW_MESSAGES)
		l.entries = malloc(most * sizeof(*l.entries));
	if (!l.entries)
		return -ENOMEM;
	for (size_t i = 0; i < ncalls; i++) {
		l.proto = decisions[i].algo->proto;
		if (p2p)
			add_message(&l, calls[i]);
		else
			add_call(&l, sel_key, calls[i]);
		if (reduces && has_proxies(decisions[i].kernel))
			decision = &decisions[i];
	}
	if (l.n) /* else this rank takes no part */
		err = emit_lists(enqueue, decision, &l, reduces, calls[0]);
	if (l.entries != few)
		free(l.entries);
	return err;
}

int shunt_pipelined(
    const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decision, const struct shunt_coll *coll)
{
	return p2p_launch(enqueue, decision, &coll, 1, false, PIPELINED);
}

/*
 * Index of the only call that takes two hops; ncalls: none. Several calls with a root each take one hop: each link
 * carries the same bytes either way.
 */
static size_t find_single(
    const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decisions, size_t ncalls)
{
	size_t found = ncalls;

	for (size_t i = 0; i < ncalls && enqueue->sel_key->nranks > 2; i++)
		if (decisions[i].algo->single) {
			if (found < ncalls)
				return ncalls;
			found = i;
		}
	return found;
}

int shunt_p2p_enqueue(const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decisions,
    const struct shunt_coll *const *calls, size_t ncalls)
{
	const struct shunt_coll *c = calls[0];
	int n = enqueue->sel_key->nranks;
	/* A single rank has nothing to reduce, unless it scales. */
	bool reduces = shunt_kind_reduces(c->kind) && (n > 1 || c->redop == SHUNT_PREMUL);
	size_t single = find_single(enqueue, decisions, ncalls), next = single + 1;
	int err = p2p_launch(enqueue, decisions, calls, single, reduces, FIRST);

	if (!err && c->kind == SHUNT_ALLREDUCE && n > 2)
		err = p2p_launch(enqueue, decisions, calls, ncalls, false, SECOND);
	/* A forwarding warp sends on the rings to many ranks, so no other warp may: a launch of its own. */
	if (!err && single < ncalls)
		err = decisions[single].algo->single(enqueue, &decisions[single], calls[single]);
	if (!err && next < ncalls)
		err = p2p_launch(enqueue, &decisions[next], &calls[next], ncalls - next, reduces, FIRST);
	return err;
}
