/* SPDX-License-Identifier: MIT */
/*
 * One rank of a torture run. It consists of lives: communicators are made, used for some hundred moves, and destroyed, and then
 * memory and descriptors must be where they were after the first, short life.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "torture.h"

enum {
	FIRST_LIFE = 24,             /* moves */
	LIFE = 400,                  /* about */
	AGREE_EVERY = 16,            /* rounds */
	MAX_LAUNCHES = 4,            /* of a graph at once */
	MAX_COUNTERS = 256,
	SETTLING = 3,                /* lives: by then a library has what it keeps for good, which it may make when something is first used */
	LEAK_BYTES = 16 << 20,       /* less than what one communicator has */
	LEAK_DESCRIPTORS = 8,
};

struct graph {
	void *graph;                 /* NULL: free */
	struct torture_slot slots[TORTURE_GRAPH_MOVES];
	int nmoves;
	bool grouped, in_place;
};

/* What there is of the device and of the process; unknown: 0. */
struct holdings {
	uint64_t device, descriptors;
};

struct tally {
	uint64_t kinds[32];
	uint64_t moves, groups, captures, launches, comms, lives, delays, checks, elements, wrong;
	struct shunt_counter paths[MAX_COUNTERS];
	size_t npaths;
};

struct limits {
	unsigned comms, kinds;       /* bit sets */
};

struct rank {
	const struct torture_opts *o;
	struct bench_shared *shared;
	struct bench_progress *progress;
	struct bench_team *team;
	struct tool_lib lib;
	struct bench_nccl nccl;
	struct torture_bench bench;
	struct torture_data data;
	int rank, nranks, device;
	uint64_t max_bytes, seed;
	bool cuda, stop;
	bool any_order;              /* a group's communicators may be named in another order on every rank */
	unsigned kinds, comms;       /* bit sets: what can be drawn, and the communicators that are alive */
	unsigned possible;           /* communicators that can be made */
	struct torture_random common, own;
	ncclComm_t comm[CONFORM_NCOMMS];
	void *streams[TORTURE_STREAMS], *delays[TORTURE_STREAMS]; /* delays: what is written to for as long as it takes */
	size_t delay_bytes;
	struct torture_slot slots[TORTURE_SLOTS];
	int nslots;                  /* that are under way */
	struct graph graphs[TORTURE_GRAPHS];
	unsigned launched;           /* bit set: graphs that were not checked since */
	struct holdings baseline, latest;
	struct tally tally;
	double began_us;
	int err;                     /* the run cannot go on; said */
};

static void note(struct rank *r, enum bench_stage stage)
{
	bench_progress_note(r->progress, stage, 0, -1);
}

static void move_note(struct rank *r, const char *how, const struct torture_slot *s)
{
	char text[256];

	torture_move_describe(&s->move, text, sizeof(text));
	snprintf(r->progress->what, sizeof(r->progress->what), "move %llu (%s%s) of --seed %llu", (unsigned long long)s->number, how,
	    text, (unsigned long long)r->seed);
	note(r, BENCH_CHECK);
}

static void device_error(struct rank *r, const char *what, int err)
{
	if (err && !r->err)
		r->err = bench_device_error(r->rank, r->device, what, err);
}

static void nccl_error(struct rank *r, const char *call, ncclResult_t result)
{
	int err = bench_nccl_check(&r->nccl, r->rank, call, result);

	if (err && !r->err) {
		tool_error("rank %d: that was in %s", r->rank, r->progress->what);
		r->err = err;
	}
}

static int gather(struct rank *r, const void *mine, size_t bytes, void *all)
{
	int err;

	note(r, BENCH_WAIT);
	err = bench_round_error(r->rank, bench_team_gather(r->team, mine, bytes, all));
	if (err && !r->err)
		r->err = err;
	return err;
}

/* ---- checks ---- */

static void slot_check(struct rank *r, const struct torture_slot *s)
{
	char text[400] = "", move[256];
	uint64_t checked;
	int64_t wrong = torture_slot_check(&r->bench, s, &r->own, &checked, text, sizeof(text));

	r->tally.checks += s->share.n > 0;
	r->tally.elements += checked;
	if (wrong < 0) {
		device_error(r, "copying a result back", (int)wrong);
	} else if (wrong) {
		torture_move_describe(&s->move, move, sizeof(move));
		if (r->tally.wrong < 10)
			tool_error("rank %d: move %llu (%s): %s; again: shunt torture -n %d%s%s%s --lib %s --max %llu --seed %llu --ops %llu",
			    r->rank, (unsigned long long)s->number, move, text, r->nranks, r->o->base.threads ? " --threads" : "",
			    r->o->base.device ? " --device " : "", r->o->base.device ? r->o->base.device : "", r->o->base.libs[0],
			    (unsigned long long)r->max_bytes, (unsigned long long)r->seed, (unsigned long long)r->tally.moves);
		r->tally.wrong++;
	}
}

/* Waits for everything and looks at what has come. */
static void check_all(struct rank *r)
{
	note(r, BENCH_CHECK);
	for (int i = 0; i < TORTURE_STREAMS && !r->err; i++)
		device_error(r, "waiting for the calls", r->lib.stream_synchronize(r->streams[i]));
	for (int i = 0; i < r->nslots && !r->err; i++)
		slot_check(r, &r->slots[i]);
	for (int g = 0; g < TORTURE_GRAPHS; g++)
		for (int i = 0; r->launched >> g & 1 && i < r->graphs[g].nmoves && !r->err; i++)
			slot_check(r, &r->graphs[g].slots[i]);
	r->nslots = 0;
	r->launched = 0;
}

/* ---- moves ---- */

/*
 * The moves of a group are all on one communicator or on several. NCCL launches a group's communicators in the order of their first
 * calls, and that must be the same on all ranks: with it every member then has a call of each move.
 */
static struct limits limits_draw(struct rank *r, bool grouped)
{
	struct limits l = { r->comms, r->kinds };

	if (!grouped)
		return l;
	if (torture_random(&r->common, 2)) {
		l.comms = 1u << torture_move_draw(&r->common, r->comms, r->kinds, 1).comm;
		return l;
	}
	for (int i = 0; !r->any_order && i < torture_nkinds(); i++)
		if (!torture_kind_is_for_all(i))
			l.kinds &= ~(1u << i);
	return l;
}

static void slot_draw(struct rank *r, struct torture_slot *s, struct limits l)
{
	struct torture_move m = torture_move_draw(&r->common, l.comms, l.kinds, r->max_bytes);

	s->number = ++r->tally.moves;
	r->tally.kinds[m.kind]++;
	torture_slot_place(s, &m, r->rank, r->nranks, &r->own);
	move_note(r, "", s);
	device_error(r, "writing inputs", torture_slot_fill(&r->bench, s));
}

static ncclResult_t part_issue(struct rank *r, const struct torture_slot *s, const struct torture_part *p, void *stream)
{
	const struct bench_coll *coll = &bench_colls[p->coll];
	struct bench_args a = {.send = torture_slot_send(s, p),
		.recv = torture_slot_recv(s, p),
		.count = p->count,
		.dtype = (ncclDataType_t)s->move.dtype,
		.redop = (ncclRedOp_t)s->move.redop,
		.root = p->root,
		.rank = s->share.me,
		.nranks = s->share.n,
		.comm = r->comm[s->move.comm],
		.stream = stream};
	bool made = coll->reduces && s->move.redop == SHUNT_PREMUL;
	ncclResult_t result, end;
	uint64_t scalar;

	if (!made)
		return coll->call(&r->nccl, &a);
	bench_data_scalar(torture_data(&r->data, &s->move, s->share.n), s->share.me, &scalar);
	result = r->nccl.RedOpCreatePreMulSum(&a.redop, &scalar, a.dtype, ncclScalarHostImmediate, a.comm);
	if (result)
		return result;
	result = coll->call(&r->nccl, &a);
	end = r->nccl.RedOpDestroy(a.redop, a.comm); /* at once, as torch does */
	return result ? result : end;
}

static void slot_issue(struct rank *r, const struct torture_slot *s, void *stream)
{
	bool group = s->share.nparts > 1;

	move_note(r, "", s);
	if (group && !r->err)
		nccl_error(r, "ncclGroupStart", r->nccl.GroupStart());
	for (int i = 0; i < s->share.nparts && !r->err; i++)
		nccl_error(r, torture_kind_name(s->move.kind), part_issue(r, s, &s->share.parts[i], stream));
	if (group && !r->err)
		nccl_error(r, "ncclGroupEnd", r->nccl.GroupEnd());
}

/* The next of a group's moves that are left: the first on a communicator of this rank's choice. */
static int next_draw(struct rank *r, const struct torture_slot *slots, unsigned left)
{
	int next = (int)torture_random_bit(&r->own, left);

	for (int i = 0; i < next; i++)
		if (left >> i & 1 && slots[i].move.comm == slots[next].move.comm)
			return i;
	return next;
}

/* Moves one after another, or as a group. stream NULL: each has its own. */
static void slots_issue(struct rank *r, const struct torture_slot *slots, int n, bool grouped, void *stream)
{
	unsigned left = (1u << n) - 1;

	if (grouped && !r->err)
		nccl_error(r, "ncclGroupStart", r->nccl.GroupStart());
	while (left && !r->err) {
		int i = grouped && r->any_order ? next_draw(r, slots, left) : __builtin_ctz(left);

		slot_issue(r, &slots[i], stream ? stream : r->streams[slots[i].move.stream]);
		left &= ~(1u << i);
	}
	if (grouped && !r->err)
		nccl_error(r, "ncclGroupEnd", r->nccl.GroupEnd());
}

/* This rank comes late, or its device does. */
static void skew(struct rank *r, unsigned stream)
{
	uint32_t how = torture_random(&r->own, 16);

	if (how < 2)
		usleep(torture_random(&r->own, 3000));
	for (uint32_t i = 0; (how == 2 || how == 3) && i < 1 + how % 3 * 8 && !r->err; i++)
		device_error(r, "a delay", r->lib.memset_async(r->delays[stream], 0, r->delay_bytes, r->streams[stream]));
	r->tally.delays += how < 4;
}

static void eager_round(struct rank *r)
{
	int n = torture_random(&r->common, 5) < 3 ? 1 : 2 + (int)torture_random(&r->common, TORTURE_GROUP - 1);
	bool grouped = torture_random(&r->common, 3) > 0 && n > 1;
	struct limits limits = limits_draw(r, grouped);
	struct torture_slot *slots;

	if (r->nslots + n > TORTURE_SLOTS)
		check_all(r);
	slots = &r->slots[r->nslots];
	for (int i = 0; i < n && !r->err; i++)
		slot_draw(r, &slots[i], limits);
	r->nslots += n;
	r->tally.groups += grouped;
	skew(r, slots[0].move.stream);
	slots_issue(r, slots, n, grouped, NULL);
}

/* ---- graphs ---- */

static void capture_round(struct rank *r, struct graph *g)
{
	void *stream = r->streams[torture_random(&r->common, TORTURE_STREAMS)];
	struct limits limits;

	/* As programs do, which wait for the device before a capture: src/core/order.h says why. */
	check_all(r);
	g->nmoves = 1 + (int)torture_random(&r->common, TORTURE_GRAPH_MOVES);
	g->grouped = torture_random(&r->common, 2) && g->nmoves > 1;
	g->in_place = false;
	limits = limits_draw(r, g->grouped);
	for (int i = 0; i < g->nmoves && !r->err; i++) {
		slot_draw(r, &g->slots[i], limits);
		g->in_place |= g->slots[i].move.in_place;
	}
	if (r->err)
		return;
	device_error(r, "beginning a capture", r->lib.capture_begin(stream));
	slots_issue(r, g->slots, g->nmoves, g->grouped, stream);
	if (!r->err)
		device_error(r, "ending a capture", r->lib.capture_end(stream, &g->graph));
	r->tally.captures++;
}

/* With new inputs; several times, unless the second launch would have the first one's results for its inputs. */
static void launch_round(struct rank *r, int which)
{
	struct graph *g = &r->graphs[which];
	uint32_t launches = 1 + torture_random(&r->common, MAX_LAUNCHES);

	if (r->launched >> which & 1)
		check_all(r);
	for (int i = 0; i < g->nmoves && !r->err; i++) {
		g->slots[i].move.data = torture_random(&r->common, UINT32_MAX);
		g->slots[i].number = ++r->tally.moves;
		r->tally.kinds[g->slots[i].move.kind]++;
		torture_share_make(&g->slots[i].move, r->rank, r->nranks, &g->slots[i].share);
		move_note(r, "in a graph, ", &g->slots[i]);
		device_error(r, "writing inputs", torture_slot_fill(&r->bench, &g->slots[i]));
	}
	for (uint32_t i = 0; i < (g->in_place ? 1 : launches) && !r->err; i++) {
		unsigned stream = torture_random(&r->common, TORTURE_STREAMS);

		skew(r, stream);
		device_error(r, "launching a graph", r->lib.graph_launch(g->graph, r->streams[stream]));
		r->tally.launches++;
	}
	r->launched |= 1u << which;
}

static void graph_drop(struct rank *r, struct graph *g)
{
	if (!g->graph)
		return;
	if (r->launched)
		check_all(r);
	if (!r->err)
		device_error(r, "destroying a graph", r->lib.graph_destroy(g->graph));
	g->graph = NULL;
}

static void graph_round(struct rank *r, uint32_t what)
{
	int which = (int)torture_random(&r->common, TORTURE_GRAPHS);
	struct graph *g = &r->graphs[which];

	if (!g->graph)
		capture_round(r, g);
	else if (what)
		launch_round(r, which);
	else
		graph_drop(r, g);
}

/* ---- communicators ---- */

/* id: of the world, which alone has one. */
static void comm_make(struct rank *r, enum conform_comm comm, const ncclUniqueId *id)
{
	char text[400];

	snprintf(r->progress->what, sizeof(r->progress->what), "the communicator \"%s\" of --seed %llu", conform_comm_name(comm),
	    (unsigned long long)r->seed);
	note(r, BENCH_INIT);
	if (id)
		nccl_error(r, "ncclCommInitRank", r->nccl.CommInitRank(&r->comm[comm], r->nranks, *id, r->rank));
	else if (!conform_comm_check(&r->nccl, comm, r->rank, r->nranks, r->device,
	             conform_comm_start(&r->nccl, comm, r->rank, r->nranks, id, r->comm), r->comm, text, sizeof(text))) {
		tool_error("rank %d: %s", r->rank, text);
		r->err = -EIO;
	}
	r->comms |= 1u << comm;
	r->tally.comms++;
}

static void path_add(struct rank *r, const struct shunt_counter *c)
{
	struct tally *t = &r->tally;
	size_t i = 0;

	while (i < t->npaths &&
	       (strcmp(t->paths[i].op, c->op) || strcmp(t->paths[i].path, c->path) || strcmp(t->paths[i].reason, c->reason)))
		i++;
	if (i == MAX_COUNTERS)
		return;
	if (i == t->npaths)
		t->paths[t->npaths++] = (struct shunt_counter){ c->op, c->path, c->reason, 0, 0 };
	t->paths[i].calls += c->calls;
}

static void comm_destroy(struct rank *r, enum conform_comm comm)
{
	struct shunt_counter rows[MAX_COUNTERS];
	ncclResult_t async = ncclSuccess;
	size_t n = 0;

	r->comms &= ~(1u << comm);
	if (!r->comm[comm] || r->err)
		return;
	note(r, BENCH_DESTROY);
	if (r->nccl.counters && !r->nccl.counters(r->comm[comm], rows, MAX_COUNTERS, &n))
		for (size_t i = 0; i < n && i < MAX_COUNTERS; i++)
			path_add(r, &rows[i]);
	if (r->nccl.CommGetAsyncError) {
		nccl_error(r, "ncclCommGetAsyncError", r->nccl.CommGetAsyncError(r->comm[comm], &async));
		nccl_error(r, "ncclCommGetAsyncError's answer", async);
	}
	if (!r->err)
		nccl_error(r, "ncclCommDestroy", r->nccl.CommDestroy(r->comm[comm]));
	r->comm[comm] = NULL;
}

/* A child that is there goes, with what was captured; one that is not there comes. */
static void comm_round(struct rank *r)
{
	enum conform_comm comm = 1 + torture_random(&r->common, CONFORM_NCOMMS - 1);

	if (!(r->possible >> comm & 1))
		return;
	check_all(r);
	if (!(r->comms >> comm & 1)) {
		if (!(r->comms >> conform_comm_parent(comm) & 1))
			comm_make(r, conform_comm_parent(comm), NULL);
		if (!r->err)
			comm_make(r, comm, NULL);
		return;
	}
	for (int i = 0; i < TORTURE_GRAPHS; i++)
		graph_drop(r, &r->graphs[i]);
	for (int i = CONFORM_NCOMMS - 1; i >= (int)comm; i--)
		if (r->comms >> i & 1 && (i == (int)comm || (conform_comm_parent(i) == comm)))
			comm_destroy(r, i);
}

/* ---- lives ---- */

static uint64_t descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	uint64_t n = 0;

	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

static struct holdings holdings(const struct rank *r)
{
	struct holdings h = { .descriptors = descriptors() };
	size_t avail = 0, total = 0;

	if (!r->o->shared && !r->lib.mem_info(&avail, &total))
		h.device = total - avail;
	return h;
}

static bool is_back(const struct rank *r)
{
	return r->latest.device <= r->baseline.device + LEAK_BYTES &&
	       r->latest.descriptors <= r->baseline.descriptors + LEAK_DESCRIPTORS;
}

/* All communicators of all ranks are gone. */
static void holdings_check(struct rank *r)
{
	char none = 0, all[BENCH_MAX_RANKS];

	/* Before the first measures: the others have let go. Before anyone makes the next communicator: all have measured. */
	if (gather(r, &none, 1, all))
		return;
	r->latest = holdings(r);
	/* What a process gives back may take a moment to be seen. */
	for (int i = 0; r->tally.lives > SETTLING && i < 100 && !is_back(r); i++) {
		usleep(20000);
		r->latest = holdings(r);
	}
	if (r->tally.lives <= SETTLING) {
		if (r->latest.device > r->baseline.device)
			r->baseline.device = r->latest.device;
		if (r->latest.descriptors > r->baseline.descriptors)
			r->baseline.descriptors = r->latest.descriptors;
	}
	if (!is_back(r)) {
		tool_error("rank %d: after %llu lives %.1f MiB of device %d and %llu descriptors are in use, where it was %.1f MiB and %llu "
			   "after the first %d: something of the communicators was not given back",
		    r->rank, (unsigned long long)r->tally.lives, (double)r->latest.device / (1 << 20), r->device,
		    (unsigned long long)r->latest.descriptors, (double)r->baseline.device / (1 << 20),
		    (unsigned long long)r->baseline.descriptors, SETTLING);
		r->err = -ENOSPC;
	}
	gather(r, &none, 1, all);
}

/* Are there wrong values anywhere, and has it been long enough? The same answer on all ranks. */
static void agree(struct rank *r)
{
	struct verdict {
		uint64_t wrong;
		bool over;
	} mine = { r->tally.wrong, false }, all[BENCH_MAX_RANKS];
	double seconds = (bench_now_us() - r->began_us) / 1e6;

	mine.over = r->o->ops ? r->tally.moves >= r->o->ops : seconds >= 60 * (r->o->minutes > 0 ? r->o->minutes : 1);
	if (gather(r, &mine, sizeof(mine), all))
		return;
	r->stop = all[0].over;
	for (int i = 0; i < r->nranks; i++)
		r->stop |= all[i].wrong > 0;
}

static void life_begin(struct rank *r)
{
	ncclUniqueId id, ids[BENCH_MAX_RANKS];

	memset(&id, 0, sizeof(id));
	if (!r->rank)
		nccl_error(r, "ncclGetUniqueId", r->nccl.GetUniqueId(&id));
	if (!r->err && !gather(r, &id, sizeof(id), ids))
		comm_make(r, CONFORM_WORLD, &ids[0]);
}

static void life_end(struct rank *r)
{
	uint32_t first = torture_random(&r->common, CONFORM_NCOMMS);

	check_all(r);
	for (int i = 0; i < TORTURE_GRAPHS; i++)
		graph_drop(r, &r->graphs[i]);
	/* In any order: a child lives on without its parent. */
	for (uint32_t i = 0; i < CONFORM_NCOMMS; i++)
		comm_destroy(r, (first + i) % CONFORM_NCOMMS);
	r->tally.lives++;
	if (!r->err)
		holdings_check(r);
}

static void life(struct rank *r)
{
	uint64_t end = r->tally.moves + (r->tally.lives ? LIFE / 4 + torture_random(&r->common, LIFE) : FIRST_LIFE);

	life_begin(r);
	for (uint64_t round = 1; !r->err && !r->stop && r->tally.moves < end; round++) {
		uint32_t what = torture_random(&r->common, 100);

		if (what < 66)
			eager_round(r);
		else if (what < 88)
			graph_round(r, what % 6);
		else if (what < 95)
			comm_round(r);
		else
			check_all(r);
		if (!r->err && (round % AGREE_EVERY == 0 || (r->o->ops && r->tally.moves >= r->o->ops)))
			agree(r);
	}
	if (!r->err)
		life_end(r);
	/* What the last moves gave. */
	if (!r->err && !r->stop)
		agree(r);
}

/* ---- the whole ---- */

static int seed_agree(struct rank *r)
{
	uint64_t mine = r->o->base.seed, all[BENCH_MAX_RANKS];
	struct timespec t;

	if (!mine) {
		clock_gettime(CLOCK_REALTIME, &t);
		mine = conform_mix((uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec) % 1000000000 + 1;
	}
	if (gather(r, &mine, sizeof(mine), all))
		return r->err;
	r->seed = all[0];
	r->common.state = r->seed;
	r->own.state = conform_mix(r->seed) + (uint64_t)r->rank;
	return 0;
}

/*
 * Without a real NCCL it is Shunt that orders a group's communicators, alike on all ranks; a real one takes the program's order for
 * what is left to it. The library has been called, so it has looked for one.
 */
static bool orders_communicators(const struct bench_nccl *nccl)
{
	__typeof__(shunt_real_nccl_path) *real = (__typeof__(shunt_real_nccl_path) *)dlsym(nccl->handle, "shunt_real_nccl_path");

	return real && !real();
}

static int rank_open(struct rank *r)
{
	int err = bench_team_join(r->shared, r->o->base.worker_fd, r->rank, r->o->base.timeout_s + 10, &r->team);

	note(r, BENCH_INIT);
	if (!err)
		err = seed_agree(r);
	if (!err)
		err = tool_lib_open(&r->lib);
	if (!err)
		err = bench_nccl_open(&r->nccl, r->o->base.libs[0], &r->lib);
	if (err)
		return err;
	r->cuda = !strcmp(r->shared->launch.kind, "cuda");
	r->any_order = orders_communicators(&r->nccl);
	r->max_bytes = r->o->max_bytes ? r->o->max_bytes : r->cuda ? 16 << 20 : 64 << 10;
	r->delay_bytes = r->cuda ? 64 << 20 : 1 << 20;
	r->bench = (struct torture_bench){ .lib = &r->lib, .data = &r->data, .bytes = r->max_bytes + TORTURE_ROOM };
	r->bench.host = malloc(r->bench.bytes);
	err = r->bench.host ? r->lib.device_set(r->device) : -ENOMEM;
	if (!err)
		err = r->lib.stream_create(&r->bench.stream);
	for (int i = 0; i < TORTURE_STREAMS && !err; i++) {
		err = r->lib.stream_create(&r->streams[i]);
		if (!err)
			err = r->lib.malloc(&r->delays[i], r->delay_bytes);
	}
	for (int i = 0; i < TORTURE_SLOTS && !err; i++)
		err = torture_slot_open(&r->bench, &r->slots[i]);
	for (int i = 0; i < TORTURE_GRAPHS * TORTURE_GRAPH_MOVES && !err; i++)
		err = torture_slot_open(&r->bench, &r->graphs[i / TORTURE_GRAPH_MOVES].slots[i % TORTURE_GRAPH_MOVES]);
	if (err)
		tool_error("rank %d: device %d cannot be used: %s", r->rank, r->device, strerror(-err));
	for (int i = 0; i < torture_nkinds(); i++)
		r->kinds |= torture_kind_lacks(i, &r->nccl) ? 0 : 1u << i;
	for (int i = 0; i < CONFORM_NCOMMS; i++)
		if (!conform_comm_is_async(i) && r->nranks >= conform_comm_least(i) && !conform_comm_lacks(&r->nccl, i))
			r->possible |= 1u << i;
	return err;
}

static void rank_close(struct rank *r, bool clean)
{
	/* After an error the device may be at work for ever; the process ends anyway. */
	for (int i = 0; clean && i < TORTURE_SLOTS; i++)
		torture_slot_close(&r->bench, &r->slots[i]);
	for (int i = 0; clean && i < TORTURE_GRAPHS * TORTURE_GRAPH_MOVES; i++)
		torture_slot_close(&r->bench, &r->graphs[i / TORTURE_GRAPH_MOVES].slots[i % TORTURE_GRAPH_MOVES]);
	if (clean) {
		for (int i = 0; i < TORTURE_STREAMS; i++) {
			r->lib.free(r->delays[i]);
			r->lib.stream_destroy(r->streams[i]);
		}
		r->lib.stream_destroy(r->bench.stream);
	}
	torture_data_finish(&r->data);
	free(r->bench.host);
	note(r, BENCH_DONE);
	bench_team_leave(r->team);
}

static void summary_print(const struct rank *r, const struct tally *all)
{
	uint64_t wrong = 0, checks = 0, elements = 0, delays = 0;
	const struct tally *t = &r->tally;

	for (int i = 0; i < r->nranks; i++) {
		wrong += all[i].wrong;
		checks += all[i].checks;
		elements += all[i].elements;
		delays += all[i].delays;
	}
	for (int i = 0; i < torture_nkinds(); i++)
		if (t->kinds[i])
			printf("%-16s %llu\n", torture_kind_name(i), (unsigned long long)t->kinds[i]);
	for (size_t i = 0; i < t->npaths; i++)
		printf("# rank 0: %s by %s%s%s%s: %llu\n", t->paths[i].op, t->paths[i].path, *t->paths[i].reason ? " (" : "",
		    t->paths[i].reason, *t->paths[i].reason ? ")" : "", (unsigned long long)t->paths[i].calls);
	printf("# %llu groups, %llu graphs, launched %llu times, %llu communicators in %llu lives, %llu delays\n",
	    (unsigned long long)t->groups, (unsigned long long)t->captures, (unsigned long long)t->launches,
	    (unsigned long long)t->comms, (unsigned long long)t->lives, (unsigned long long)delays);
	printf("# rank 0 without communicators, at most in the first %d lives and after the last: ", SETTLING);
	if (r->cuda && !r->o->shared)
		printf("%.1f and %.1f MiB of device memory in use, ", (double)r->baseline.device / (1 << 20),
		    (double)r->latest.device / (1 << 20));
	printf("%llu and %llu descriptors\n", (unsigned long long)r->baseline.descriptors, (unsigned long long)r->latest.descriptors);
	printf("%llu moves, %llu results and %llu elements checked, wrong values in %llu, %.1f s, seed %llu\n",
	    (unsigned long long)t->moves, (unsigned long long)checks, (unsigned long long)elements, (unsigned long long)wrong,
	    (bench_now_us() - r->began_us) / 1e6, (unsigned long long)r->seed);
}

static int seat_run(const void *arg, const struct bench_seat *seat)
{
	struct rank *r = calloc(1, sizeof(*r));
	struct tally *all = calloc(TORTURE_MAX_RANKS, sizeof(*all));
	int status = TOOL_FAIL;

	if (!r || !all || seat->shared->launch.nranks > TORTURE_MAX_RANKS) {
		tool_error("%s", r && all ? "there may be 8 ranks at most; give -n" : "out of memory");
		bench_team_fail(NULL, seat->shared);
		goto out;
	}
	r->o = arg;
	r->shared = seat->shared;
	r->progress = seat->progress;
	r->rank = seat->rank;
	r->device = seat->device;
	r->nranks = seat->shared->launch.nranks;
	r->began_us = bench_now_us();
	r->err = rank_open(r);
	if (!r->err && !r->rank) {
		printf("# shunt torture %s: %d %s on %s, %s, up to %llu bytes, seed %llu\n", r->lib.version(), r->nranks,
		    r->o->base.threads ? "threads" : "processes", r->shared->launch.kind, r->nccl.path,
		    (unsigned long long)r->max_bytes, (unsigned long long)r->seed);
		fflush(stdout);
	}
	while (!r->err && !r->stop)
		life(r);
	if (!r->err && !gather(r, &r->tally, sizeof(r->tally), all)) {
		status = TOOL_OK;
		for (int i = 0; i < r->nranks; i++)
			status = all[i].wrong ? TOOL_FAIL : status;
		if (!r->rank)
			summary_print(r, all);
	}
	if (r->err)
		bench_team_fail(r->team, r->shared);
	rank_close(r, !r->err);
out:
	free(all);
	free(r);
	return status;
}

int torture_worker(const struct torture_opts *o)
{
	return bench_seats_run(&o->base, seat_run, o);
}
